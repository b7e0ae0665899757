// A copier of test_copiers.py with franz-go's GroupTransactSession: a member of a group, whose rebalances abort.
package main

import (
	"context"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, source, target, name, number := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	background := context.Background()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.TransactionalID(name+"-"+number),
		kgo.TransactionTimeout(10*time.Second),
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.SessionTimeout(10*time.Second),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		log.Fatal(err)
	}
	for round := 0; ; {
		fetches := session.PollRecords(background, 20)
		for _, each := range fetches.Errors() {
			log.Print(each.Topic, each.Partition, each.Err)
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			log.Fatal(err)
		}
		failed := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(each *kgo.Record) {
			copied := &kgo.Record{Topic: target, Partition: each.Partition, Key: each.Key, Value: each.Value}
			session.Produce(background, copied, failed.Promise())
		})
		round++
		sent := failed.Err() == nil
		if _, err := session.End(background, kgo.TransactionEndTry(sent && round%4 != 0)); err != nil {
			log.Fatal(err)
		}
	}
}
