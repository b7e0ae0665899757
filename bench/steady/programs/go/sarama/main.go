// sarama behind the line protocol of bench/steady/programs/protocol.py.
//
// Set beyond the addresses: the idempotence of the producer, and what sarama demands with it; a partitioner that takes
// the record's own partition; channels for results and errors, which otherwise go to a log; the start of the member at
// the oldest offset.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"siltstone/steady/lines"
)

func main() {
	job, orders := lines.Given(), lines.Listen()
	run := map[string]func(lines.Job, *lines.Orders) error{"writer": write, "reader": read, "member": join}[job.Role]
	if err := run(job, orders); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config() *sarama.Config {
	made := sarama.NewConfig()
	return made
}

func write(job lines.Job, orders *lines.Orders) error {
	settings := config()
	settings.Producer.Idempotent = true
	settings.Producer.RequiredAcks = sarama.WaitForAll
	settings.Net.MaxOpenRequests = 1
	settings.Producer.Partitioner = sarama.NewManualPartitioner
	settings.Producer.Return.Successes = true
	producer, err := sarama.NewAsyncProducer(job.Bootstrap, settings)
	if err != nil {
		return err
	}
	var drained sync.WaitGroup
	drained.Go(func() {
		for each := range producer.Successes() {
			lines.Acknowledged(each.Partition, each.Offset, each.Metadata.(string))
		}
	})
	drained.Go(func() {
		for each := range producer.Errors() {
			lines.Failed(each.Err)
		}
	})
	lines.Ready()
	for number := 0; orders.GoOn(); number++ {
		next := time.Now().Add(lines.Pause)
		value := job.Value(number)
		producer.Input() <- &sarama.ProducerMessage{
			Topic: job.Topic, Partition: int32(number % job.Partitions), Value: sarama.StringEncoder(value), Metadata: value,
		}
		time.Sleep(time.Until(next))
	}
	producer.AsyncClose()
	drained.Wait()
	return nil
}

func read(job lines.Job, orders *lines.Orders) error {
	settings := config()
	settings.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer(job.Bootstrap, settings)
	if err != nil {
		return err
	}
	messages := make(chan *sarama.ConsumerMessage)
	for number := range job.Partitions {
		partition, err := consumer.ConsumePartition(job.Topic, int32(number), 0)
		if err != nil {
			return err
		}
		go func() {
			for each := range partition.Messages() {
				messages <- each
			}
		}()
		go func() {
			for each := range partition.Errors() {
				lines.Failed(each.Err)
			}
		}()
	}
	lines.Ready()
	for orders.GoOn() {
		select {
		case each := <-messages:
			lines.Found(each.Partition, each.Offset, string(each.Value))
		case <-time.After(lines.Poll):
		}
	}
	return nil
}

// A member of a group.
type member struct{ orders *lines.Orders }

func (one *member) Setup(session sarama.ConsumerGroupSession) error {
	count := 0
	for _, partitions := range session.Claims() {
		count += len(partitions)
	}
	lines.Assigned(count)
	return nil
}

func (one *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (one *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for one.orders.GoOn() {
		select {
		case each, there := <-claim.Messages():
			if !there {
				return nil
			}
			lines.Found(each.Partition, each.Offset, string(each.Value))
			session.MarkMessage(each, "")
		case <-session.Context().Done():
			return nil
		case <-time.After(lines.Poll):
		}
	}
	return nil
}

func join(job lines.Job, orders *lines.Orders) error {
	settings := config()
	settings.Consumer.Return.Errors = true
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	group, err := sarama.NewConsumerGroup(job.Bootstrap, job.Name, settings)
	if err != nil {
		return err
	}
	go func() {
		for each := range group.Errors() {
			lines.Failed(each)
		}
	}()
	lines.Ready()
	for orders.GoOn() {
		err := group.Consume(context.Background(), []string{job.Topic}, &member{orders})
		if err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
			lines.Failed(err)
			time.Sleep(lines.Pause)
		}
	}
	return group.Close()
}
