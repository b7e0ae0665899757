// A copier of test_copiers.py with sarama. It commits offsets without a group's generation, and reads them without
// waiting for open transactions. So each partition has a copier and a transactional id of its own, and the offset is
// read after the producer has fenced the one before.
package main

import (
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	addresses, source, target, name := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3], os.Args[4]
	partition, err := strconv.Atoi(os.Args[5])
	must(err)
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Transaction.ID = name + "-" + os.Args[5]
	config.Producer.Transaction.Timeout = 10 * time.Second
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	producer, err := sarama.NewSyncProducer(addresses, config)
	must(err)
	client, err := sarama.NewClient(addresses, config)
	must(err)
	offsets, err := sarama.NewOffsetManagerFromClient(name, client)
	must(err)
	place, err := offsets.ManagePartition(source, int32(partition))
	must(err)
	start, _ := place.NextOffset()
	consumer, err := sarama.NewConsumerFromClient(client)
	must(err)
	records, err := consumer.ConsumePartition(source, int32(partition), start)
	must(err)
	for round := 1; ; {
		some := gathered(records.Messages())
		for committed := false; !committed; round++ {
			committed = round%4 != 0
			copySome(producer, some, target, name, committed)
		}
	}
}

// As many as there are, at most 20.
func gathered(records <-chan *sarama.ConsumerMessage) []*sarama.ConsumerMessage {
	some := []*sarama.ConsumerMessage{<-records}
	for len(some) < 20 {
		select {
		case each := <-records:
			some = append(some, each)
		case <-time.After(20 * time.Millisecond):
			return some
		}
	}
	return some
}

func copySome(producer sarama.SyncProducer, some []*sarama.ConsumerMessage, target, group string, commits bool) {
	must(producer.BeginTxn())
	copied := make([]*sarama.ProducerMessage, len(some))
	for index, each := range some {
		value := sarama.ByteEncoder(each.Value)
		copied[index] = &sarama.ProducerMessage{Topic: target, Partition: each.Partition, Value: value}
	}
	must(producer.SendMessages(copied))
	must(producer.AddMessageToTxn(some[len(some)-1], group, nil))
	if commits {
		must(producer.CommitTxn())
	} else {
		must(producer.AbortTxn())
	}
}
