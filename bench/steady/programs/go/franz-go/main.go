// franz-go behind the line protocol of bench/steady/programs/protocol.py.
//
// Its producer is idempotent, and its consumers begin at the start, as they come. Set beyond the addresses: a
// partitioner that takes the record's own partition.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"siltstone/steady/lines"
)

var background = context.Background()

func main() {
	job, orders := lines.Given(), lines.Listen()
	run := read
	if job.Role == "writer" {
		run = write
	}
	if err := run(job, orders); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(job lines.Job, orders *lines.Orders) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(job.Bootstrap...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	lines.Ready()
	for number := 0; orders.GoOn(); number++ {
		next := time.Now().Add(lines.Pause)
		made := &kgo.Record{
			Topic: job.Topic, Partition: int32(number % job.Partitions), Value: []byte(job.Value(number)),
		}
		client.Produce(background, made, func(sent *kgo.Record, err error) {
			if err != nil {
				lines.Failed(err)
				return
			}
			lines.Acknowledged(sent.Partition, sent.Offset, string(sent.Value))
		})
		time.Sleep(time.Until(next))
	}
	if err := client.Flush(background); err != nil {
		return err
	}
	client.Close()
	return nil
}

// The partitions that a member has now: its assignments come as differences.
type assigned struct {
	mutex sync.Mutex
	count int
}

func (held *assigned) added(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	held.mutex.Lock()
	defer held.mutex.Unlock()
	for _, each := range partitions {
		held.count += len(each)
	}
	lines.Assigned(held.count)
}

func (held *assigned) removed(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	held.mutex.Lock()
	defer held.mutex.Unlock()
	for _, each := range partitions {
		held.count -= len(each)
	}
}

func read(job lines.Job, orders *lines.Orders) error {
	options := []kgo.Opt{kgo.SeedBrokers(job.Bootstrap...)}
	if job.Role == "member" {
		held := &assigned{}
		options = append(options,
			kgo.ConsumerGroup(job.Name), kgo.ConsumeTopics(job.Topic), kgo.OnPartitionsAssigned(held.added),
			kgo.OnPartitionsRevoked(held.removed), kgo.OnPartitionsLost(held.removed),
		)
	} else {
		places := map[int32]kgo.Offset{}
		for number := range job.Partitions {
			places[int32(number)] = kgo.NewOffset().At(0)
		}
		options = append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{job.Topic: places}))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	lines.Ready()
	for orders.GoOn() {
		limited, done := context.WithTimeout(background, lines.Poll)
		fetches := client.PollFetches(limited)
		done()
		fetches.EachError(func(_ string, _ int32, err error) {
			if !errors.Is(err, context.DeadlineExceeded) {
				lines.Failed(err)
			}
		})
		fetches.EachRecord(func(each *kgo.Record) { lines.Found(each.Partition, each.Offset, string(each.Value)) })
	}
	client.Close()
	return nil
}
