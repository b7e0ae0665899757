// sarama behind the protocol of tests/conformance/programs.py: a JSON object a line in, one a line out.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type asked struct {
	Do          string            `json:"do"`
	ID          int               `json:"id"`
	Ms          int64             `json:"ms"`
	Topic       string            `json:"topic"`
	Start       *int64            `json:"start"`
	Group       *string           `json:"group"`
	Instance    *string           `json:"instance"`
	FetchBytes  *int32            `json:"fetch_bytes"`
	HeartbeatMs int64             `json:"heartbeat_ms"`
	SessionMs   int64             `json:"session_ms"`
	Records     []given           `json:"records"`
	Codec       string            `json:"codec"`
	ClientID    string            `json:"client_id"`
	At          int64             `json:"at"`
	Partitions  int32             `json:"partitions"`
	Configs     map[string]string `json:"configs"`
	Name        string            `json:"name"`
	Value       string            `json:"value"`
	Before      int64             `json:"before"`
	Bootstrap   string            `json:"bootstrap"`
	Security    map[string]string `json:"security"`
}

func (ask asked) addresses() []string { return strings.Split(ask.Bootstrap, ",") }

type given struct {
	Key         []byte              `json:"key"`
	Value       []byte              `json:"value"`
	Headers     [][]json.RawMessage `json:"headers"`
	TimestampMs *int64              `json:"timestamp_ms"`
}

type answer map[string]any

var (
	consumers  = map[int]*consumer{}
	background = context.Background()
)

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var ask asked
		result := answer{}
		if err = json.Unmarshal(line, &ask); err == nil {
			result, err = act(ask)
		}
		if err != nil {
			result = answer{"error": err.Error(), "no_offset": errors.Is(err, sarama.ErrOffsetOutOfRange)}
		}
		out.Encode(result)
	}
}

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.V3_6_0_0
	made.Metadata.RefreshFrequency = time.Second
	return made
}

// The settings of a client that comes in as it is asked to.
func secured(ask asked) (*sarama.Config, error) {
	made, login := config(), ask.Security
	if strings.HasSuffix(login["protocol"], "SSL") {
		authorities, err := os.ReadFile(login["ca_file"])
		if err != nil {
			return nil, err
		}
		made.Net.TLS.Enable = true
		made.Net.TLS.Config = &tls.Config{RootCAs: x509.NewCertPool()}
		made.Net.TLS.Config.RootCAs.AppendCertsFromPEM(authorities)
		if login["certificate_file"] != "" {
			own, err := tls.LoadX509KeyPair(login["certificate_file"], login["key_file"])
			if err != nil {
				return nil, err
			}
			made.Net.TLS.Config.Certificates = []tls.Certificate{own}
		}
	}
	if login["mechanism"] != "" {
		made.Net.SASL.Enable = true
		made.Net.SASL.Mechanism = sarama.SASLMechanism(login["mechanism"])
		made.Net.SASL.User, made.Net.SASL.Password = login["username"], login["password"]
	}
	switch login["mechanism"] {
	case "SCRAM-SHA-256":
		made.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &proof{hash: scram.SHA256} }
	case "SCRAM-SHA-512":
		made.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &proof{hash: scram.SHA512} }
	case "OAUTHBEARER":
		made.Net.SASL.TokenProvider = bearer(login["token"])
	}
	return made, nil
}

type bearer string

func (one bearer) Token() (*sarama.AccessToken, error) { return &sarama.AccessToken{Token: string(one)}, nil }

// SCRAM for sarama, which leaves it to a library of the application's choice.
type proof struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (one *proof) Begin(user, password, authzID string) error {
	client, err := one.hash.NewClient(user, password, authzID)
	if err == nil {
		one.conversation = client.NewConversation()
	}
	return err
}

func (one *proof) Step(challenge string) (string, error) { return one.conversation.Step(challenge) }

func (one *proof) Done() bool { return one.conversation.Done() }

func act(ask asked) (answer, error) {
	settings, err := secured(ask)
	if err != nil {
		return nil, err
	}
	switch ask.Do {
	case "write":
		return write(ask)
	case "open":
		return answer{}, open(ask)
	case "poll":
		return consumers[ask.ID].poll(ask)
	case "commit":
		consumers[ask.ID].commit()
		return answer{}, nil
	case "close":
		consumers[ask.ID].close()
		delete(consumers, ask.ID)
		return answer{}, nil
	case "offset":
		client, err := sarama.NewClient(ask.addresses(), settings)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		found, err := client.GetOffset(ask.Topic, 0, ask.At)
		return answer{"offset": found}, err
	}
	admin, err := sarama.NewClusterAdmin(ask.addresses(), settings)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	return administer(admin, ask)
}

func write(ask asked) (answer, error) {
	settings, err := secured(ask)
	if err != nil {
		return nil, err
	}
	settings.ClientID = ask.ClientID
	settings.Producer.Compression = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}[ask.Codec]
	settings.Producer.Idempotent = true
	settings.Producer.RequiredAcks = sarama.WaitForAll
	settings.Net.MaxOpenRequests = 1
	settings.Producer.Partitioner = sarama.NewManualPartitioner
	settings.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(ask.addresses(), settings)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for _, each := range ask.Records {
		made := &sarama.ProducerMessage{Topic: ask.Topic, Partition: 0}
		if each.Key != nil {
			made.Key = sarama.ByteEncoder(each.Key)
		}
		if each.Value != nil {
			made.Value = sarama.ByteEncoder(each.Value)
		}
		if each.TimestampMs != nil {
			made.Timestamp = time.UnixMilli(*each.TimestampMs)
		}
		for _, pair := range each.Headers {
			var name string
			var value []byte
			json.Unmarshal(pair[0], &name)
			json.Unmarshal(pair[1], &value)
			made.Headers = append(made.Headers, sarama.RecordHeader{Key: []byte(name), Value: value})
		}
		messages = append(messages, made)
	}
	if err := producer.SendMessages(messages); err != nil {
		var failed sarama.ProducerErrors
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w The first: %w", err, failed[0].Err)
		}
		return nil, err
	}
	offsets := []int64{}
	for _, each := range messages {
		offsets = append(offsets, each.Offset)
	}
	return answer{"offsets": offsets}, nil
}

// A consumer of one partition, or a member of a group, whose claims all lead into one channel.
type consumer struct {
	messages   chan *sarama.ConsumerMessage
	errors     chan error
	ending     context.CancelFunc
	done       chan struct{}
	closing    func() error
	mutex      sync.Mutex
	session    sarama.ConsumerGroupSession
	partitions map[int32]bool
	taken      []*sarama.ConsumerMessage
}

func open(ask asked) error {
	settings, err := secured(ask)
	if err != nil {
		return err
	}
	settings.ChannelBufferSize = 1
	settings.Consumer.Return.Errors = true
	settings.Consumer.Offsets.AutoCommit.Enable = false
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	if ask.FetchBytes != nil {
		settings.Consumer.Fetch.Default = *ask.FetchBytes
	}
	limited, ending := context.WithCancel(background)
	one := &consumer{
		messages: make(chan *sarama.ConsumerMessage), errors: make(chan error, 100), ending: ending,
		done: make(chan struct{}), partitions: map[int32]bool{},
	}
	if ask.Group == nil {
		return one.openPartition(ask, settings, limited)
	}
	settings.Consumer.Group.Session.Timeout = time.Duration(ask.SessionMs) * time.Millisecond
	settings.Consumer.Group.Heartbeat.Interval = time.Duration(ask.HeartbeatMs) * time.Millisecond
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	if ask.Instance != nil {
		settings.Consumer.Group.InstanceId = *ask.Instance
	}
	group, err := sarama.NewConsumerGroup(ask.addresses(), *ask.Group, settings)
	if err != nil {
		return err
	}
	one.closing = group.Close
	go func() {
		defer close(one.done)
		for limited.Err() == nil {
			if err := group.Consume(limited, []string{ask.Topic}, one); err != nil {
				one.errors <- err
				return
			}
		}
	}()
	go func() {
		for range group.Errors() {
		}
	}()
	consumers[ask.ID] = one
	return nil
}

func (one *consumer) openPartition(ask asked, settings *sarama.Config, limited context.Context) error {
	client, err := sarama.NewConsumer(ask.addresses(), settings)
	if err != nil {
		return err
	}
	start := int64(0)
	if ask.Start != nil {
		start = *ask.Start
	}
	partition, err := client.ConsumePartition(ask.Topic, 0, start)
	if err != nil {
		return err
	}
	one.partitions[0] = true
	one.closing = func() error {
		partition.AsyncClose()
		return client.Close()
	}
	go func() {
		defer close(one.done)
		for {
			select {
			case message, there := <-partition.Messages():
				if !there {
					return
				}
				select {
				case one.messages <- message:
				case <-limited.Done():
					return
				}
			case <-limited.Done():
				return
			}
		}
	}()
	go func() {
		for err := range partition.Errors() {
			one.errors <- err.Err
		}
	}()
	consumers[ask.ID] = one
	return nil
}

func (one *consumer) Setup(session sarama.ConsumerGroupSession) error {
	one.mutex.Lock()
	defer one.mutex.Unlock()
	one.session = session
	one.partitions = map[int32]bool{}
	for _, partitions := range session.Claims() {
		for _, partition := range partitions {
			one.partitions[partition] = true
		}
	}
	return nil
}

func (one *consumer) Cleanup(sarama.ConsumerGroupSession) error {
	one.mutex.Lock()
	defer one.mutex.Unlock()
	one.session = nil
	one.partitions = map[int32]bool{}
	return nil
}

func (one *consumer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, there := <-claim.Messages():
			if !there {
				return nil
			}
			select {
			case one.messages <- message:
			case <-session.Context().Done():
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (one *consumer) poll(ask asked) (answer, error) {
	items := []answer{}
	after := time.After(time.Duration(ask.Ms) * time.Millisecond)
	for waiting := true; waiting && len(items) < 10; {
		select {
		case message := <-one.messages:
			one.taken = append(one.taken, message)
			headers := [][]any{}
			for _, header := range message.Headers {
				headers = append(headers, []any{string(header.Key), header.Value})
			}
			items = append(items, answer{
				"partition": message.Partition, "offset": message.Offset, "key": message.Key, "value": message.Value,
				"headers": headers,
			})
		case err := <-one.errors:
			if len(items) == 0 {
				return nil, err
			}
			one.errors <- err
			waiting = false
		case <-after:
			waiting = false
		}
	}
	one.mutex.Lock()
	defer one.mutex.Unlock()
	partitions := []int32{}
	for partition := range one.partitions {
		partitions = append(partitions, partition)
	}
	return answer{"items": items, "partitions": partitions}, nil
}

func (one *consumer) commit() {
	one.mutex.Lock()
	defer one.mutex.Unlock()
	if one.session == nil {
		return
	}
	for _, message := range one.taken {
		one.session.MarkMessage(message, "")
	}
	one.session.Commit()
	one.taken = nil
}

func (one *consumer) close() {
	one.ending()
	<-one.done
	one.closing()
}

func administer(admin sarama.ClusterAdmin, ask asked) (answer, error) {
	group := ""
	if ask.Group != nil {
		group = *ask.Group
	}
	switch ask.Do {
	case "create":
		configs := map[string]*string{}
		for name, value := range ask.Configs {
			configs[name] = &value
		}
		detail := &sarama.TopicDetail{NumPartitions: ask.Partitions, ReplicationFactor: 3, ConfigEntries: configs}
		return answer{}, admin.CreateTopic(ask.Topic, detail, false)
	case "count":
		found, err := admin.DescribeTopics([]string{ask.Topic})
		if err != nil {
			return nil, err
		}
		return answer{"count": len(found[0].Partitions)}, nil
	case "config":
		resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: ask.Topic, ConfigNames: []string{ask.Name}}
		found, err := admin.DescribeConfig(resource)
		if err != nil || len(found) == 0 {
			return answer{"value": nil}, err
		}
		return answer{"value": found[0].Value}, nil
	case "set":
		change := map[string]sarama.IncrementalAlterConfigsEntry{
			ask.Name: {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &ask.Value},
		}
		return answer{}, admin.IncrementalAlterConfig(sarama.TopicResource, ask.Topic, change, false)
	case "grow":
		return answer{}, admin.CreatePartitions(ask.Topic, ask.Partitions, nil, false)
	case "delete":
		return answer{}, admin.DeleteTopic(ask.Topic)
	case "delete_records":
		return answer{}, admin.DeleteRecords(ask.Topic, map[int32]int64{0: ask.Before})
	case "groups":
		found, err := admin.ListConsumerGroups()
		groups := map[string]string{}
		for name := range found {
			groups[name] = ""
		}
		return answer{"groups": groups}, err
	case "group":
		found, err := admin.DescribeConsumerGroups([]string{group})
		if err != nil {
			return nil, err
		}
		return answer{"state": found[0].State, "members": len(found[0].Members)}, nil
	case "committed":
		found, err := admin.ListConsumerGroupOffsets(group, nil)
		if err != nil {
			return nil, err
		}
		offsets := map[string]int64{}
		for _, partitions := range found.Blocks {
			for partition, block := range partitions {
				offsets[strconv.Itoa(int(partition))] = block.Offset
			}
		}
		return answer{"offsets": offsets}, nil
	case "delete_group":
		return answer{}, admin.DeleteConsumerGroup(group)
	}
	return nil, errors.New("unknown: " + ask.Do)
}
