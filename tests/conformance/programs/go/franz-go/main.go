// franz-go behind the protocol of tests/conformance/programs.py: a JSON object a line in, one a line out.
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

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type asked struct {
	Do          string            `json:"do"`
	ID          int               `json:"id"`
	Ms          int64             `json:"ms"`
	Topic       string            `json:"topic"`
	Start       *int64            `json:"start"`
	Group       *string           `json:"group"`
	Instance    *string           `json:"instance"`
	Reset       string            `json:"reset"`
	FetchBytes  *int32            `json:"fetch_bytes"`
	HeartbeatMs int64             `json:"heartbeat_ms"`
	SessionMs   int64             `json:"session_ms"`
	Records     []json.RawMessage `json:"records"`
	Codec       string            `json:"codec"`
	ClientID    string            `json:"client_id"`
	At          int64             `json:"at"`
	Partitions  int               `json:"partitions"`
	Configs     map[string]string `json:"configs"`
	Name        string            `json:"name"`
	Value       string            `json:"value"`
	Before      int64             `json:"before"`
	Bootstrap   string            `json:"bootstrap"`
	Security    map[string]string `json:"security"`
}

type consumer struct {
	client     *kgo.Client
	mutex      sync.Mutex
	partitions map[int32]bool
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
			var lost *kgo.ErrDataLoss
			result = answer{"error": err.Error(), "no_offset": errors.Is(err, kerr.OffsetOutOfRange) || errors.As(err, &lost)}
		}
		out.Encode(result)
	}
}

func act(ask asked) (answer, error) {
	switch ask.Do {
	case "write":
		return write(ask)
	case "open":
		return answer{}, open(ask)
	case "poll":
		return poll(ask)
	case "commit":
		return answer{}, consumers[ask.ID].client.CommitUncommittedOffsets(background)
	case "close":
		consumers[ask.ID].client.Close()
		delete(consumers, ask.ID)
		return answer{}, nil
	}
	options, err := place(ask)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return administer(kadm.NewClient(client), ask)
}

// A client tries for ever to come in; whether it can is told by a ping alone.
func connected(options []kgo.Opt) (*kgo.Client, error) {
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(background, 20*time.Second)
	defer cancel()
	if err := client.Ping(limited); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// Where to connect and how to come in.
func place(ask asked) ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(ask.Bootstrap, ",")...)}
	login := ask.Security
	if strings.HasSuffix(login["protocol"], "SSL") {
		settings, err := tlsSettings(login)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(settings))
	}
	user, password := login["username"], login["password"]
	switch login["mechanism"] {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: login["token"]}.AsMechanism()))
	}
	return options, nil
}

func tlsSettings(login map[string]string) (*tls.Config, error) {
	authorities, err := os.ReadFile(login["ca_file"])
	if err != nil {
		return nil, err
	}
	settings := &tls.Config{RootCAs: x509.NewCertPool()}
	settings.RootCAs.AppendCertsFromPEM(authorities)
	if login["certificate_file"] != "" {
		own, err := tls.LoadX509KeyPair(login["certificate_file"], login["key_file"])
		if err != nil {
			return nil, err
		}
		settings.Certificates = []tls.Certificate{own}
	}
	return settings, nil
}

func write(ask asked) (answer, error) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	options, err := place(ask)
	if err != nil {
		return nil, err
	}
	client, err := connected(append(options,
		kgo.ClientID(ask.ClientID), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[ask.Codec]), kgo.ProducerLinger(5*time.Millisecond),
	))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []*kgo.Record
	for _, raw := range ask.Records {
		var given struct {
			Key         []byte              `json:"key"`
			Value       []byte              `json:"value"`
			Headers     [][]json.RawMessage `json:"headers"`
			TimestampMs *int64              `json:"timestamp_ms"`
		}
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, err
		}
		made := &kgo.Record{Topic: ask.Topic, Partition: 0, Key: given.Key, Value: given.Value}
		if given.TimestampMs != nil {
			made.Timestamp = time.UnixMilli(*given.TimestampMs)
		}
		for _, pair := range given.Headers {
			var header kgo.RecordHeader
			json.Unmarshal(pair[0], &header.Key)
			json.Unmarshal(pair[1], &header.Value)
			made.Headers = append(made.Headers, header)
		}
		records = append(records, made)
	}
	if err := client.ProduceSync(background, records...).FirstErr(); err != nil {
		return nil, err
	}
	offsets := []int64{}
	for _, each := range records {
		offsets = append(offsets, each.Offset)
	}
	return answer{"offsets": offsets}, nil
}

func open(ask asked) error {
	made := &consumer{partitions: map[int32]bool{}}
	reset := map[string]kgo.Offset{
		"earliest": kgo.NewOffset().AtStart(), "latest": kgo.NewOffset().AtEnd(), "none": kgo.NoResetOffset(),
	}[ask.Reset]
	options, err := place(ask)
	if err != nil {
		return err
	}
	options = append(options,
		kgo.ConsumeResetOffset(reset), kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(100*time.Millisecond),
	)
	if ask.FetchBytes != nil {
		options = append(options, kgo.FetchMaxPartitionBytes(*ask.FetchBytes))
	}
	if ask.Group == nil {
		start := int64(0)
		if ask.Start != nil {
			start = *ask.Start
		}
		made.partitions[0] = true
		options = append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			ask.Topic: {0: kgo.NewOffset().At(start)},
		}))
	} else {
		options = append(options,
			kgo.ConsumerGroup(*ask.Group), kgo.ConsumeTopics(ask.Topic), kgo.Balancers(kgo.RangeBalancer()),
			kgo.DisableAutoCommit(), kgo.SessionTimeout(time.Duration(ask.SessionMs)*time.Millisecond),
			kgo.HeartbeatInterval(time.Duration(ask.HeartbeatMs)*time.Millisecond),
			kgo.OnPartitionsAssigned(made.assigned), kgo.OnPartitionsRevoked(made.revoked), kgo.OnPartitionsLost(made.revoked),
		)
		if ask.Instance != nil {
			options = append(options, kgo.InstanceID(*ask.Instance))
		}
	}
	client, err := connected(options)
	if err != nil {
		return err
	}
	made.client = client
	consumers[ask.ID] = made
	return nil
}

func (one *consumer) assigned(_ context.Context, _ *kgo.Client, places map[string][]int32) {
	one.set(places, true)
}

func (one *consumer) revoked(_ context.Context, _ *kgo.Client, places map[string][]int32) {
	one.set(places, false)
}

func (one *consumer) set(places map[string][]int32, held bool) {
	one.mutex.Lock()
	defer one.mutex.Unlock()
	for _, partitions := range places {
		for _, partition := range partitions {
			if held {
				one.partitions[partition] = true
			} else {
				delete(one.partitions, partition)
			}
		}
	}
}

func poll(ask asked) (answer, error) {
	one := consumers[ask.ID]
	limited, cancel := context.WithTimeout(background, time.Duration(ask.Ms)*time.Millisecond)
	defer cancel()
	fetches := one.client.PollRecords(limited, 10)
	for _, each := range fetches.Errors() {
		if errors.Is(each.Err, context.DeadlineExceeded) || errors.Is(each.Err, kerr.UnknownTopicOrPartition) {
			continue
		}
		return nil, fmt.Errorf("partition %d: %w", each.Partition, each.Err)
	}
	items := []answer{}
	fetches.EachRecord(func(each *kgo.Record) {
		headers := [][]any{}
		for _, header := range each.Headers {
			headers = append(headers, []any{header.Key, header.Value})
		}
		items = append(items, answer{
			"partition": each.Partition, "offset": each.Offset, "key": each.Key, "value": each.Value, "headers": headers,
		})
	})
	one.mutex.Lock()
	defer one.mutex.Unlock()
	partitions := []int32{}
	for partition := range one.partitions {
		partitions = append(partitions, partition)
	}
	return answer{"items": items, "partitions": partitions}, nil
}

func administer(admin *kadm.Client, ask asked) (answer, error) {
	group := ""
	if ask.Group != nil {
		group = *ask.Group
	}
	switch ask.Do {
	case "offset":
		return offset(admin, ask)
	case "create":
		configs := map[string]*string{}
		for name, value := range ask.Configs {
			configs[name] = &value
		}
		made, err := admin.CreateTopic(background, int32(ask.Partitions), 3, configs, ask.Topic)
		return answer{}, first(err, made.Err)
	case "count":
		found, err := admin.ListTopics(background, ask.Topic)
		return answer{"count": len(found[ask.Topic].Partitions)}, err
	case "config":
		found, err := admin.DescribeTopicConfigs(background, ask.Topic)
		if err != nil {
			return nil, err
		}
		for _, each := range found[0].Configs {
			if each.Key == ask.Name {
				return answer{"value": each.MaybeValue()}, nil
			}
		}
		return answer{"value": nil}, nil
	case "set":
		change := kadm.AlterConfig{Op: kadm.SetConfig, Name: ask.Name, Value: &ask.Value}
		made, err := admin.AlterTopicConfigs(background, []kadm.AlterConfig{change}, ask.Topic)
		if err != nil {
			return nil, err
		}
		return answer{}, made[0].Err
	case "grow":
		made, err := admin.UpdatePartitions(background, ask.Partitions, ask.Topic)
		return answer{}, first(err, made[ask.Topic].Err)
	case "delete":
		made, err := admin.DeleteTopics(background, ask.Topic)
		return answer{}, first(err, made[ask.Topic].Err)
	case "delete_records":
		offsets := kadm.Offsets{}
		offsets.AddOffset(ask.Topic, 0, ask.Before, -1)
		made, err := admin.DeleteRecords(background, offsets)
		return answer{}, first(err, made.Error())
	case "groups":
		found, err := admin.ListGroups(background)
		groups := map[string]string{}
		for _, each := range found {
			groups[each.Group] = each.State
		}
		return answer{"groups": groups}, err
	case "group":
		found, err := admin.DescribeGroups(background, group)
		return answer{"state": found[group].State, "members": len(found[group].Members)}, first(err, found[group].Err)
	case "committed":
		found, err := admin.FetchOffsets(background, group)
		offsets := map[string]int64{}
		found.Each(func(each kadm.OffsetResponse) { offsets[strconv.Itoa(int(each.Partition))] = each.At })
		return answer{"offsets": offsets}, err
	case "delete_group":
		made, err := admin.DeleteGroups(background, group)
		return answer{}, first(err, made[group].Err)
	}
	return nil, errors.New("unknown: " + ask.Do)
}

func offset(admin *kadm.Client, ask asked) (answer, error) {
	var found kadm.ListedOffsets
	var err error
	switch ask.At {
	case -1:
		found, err = admin.ListEndOffsets(background, ask.Topic)
	case -2:
		found, err = admin.ListStartOffsets(background, ask.Topic)
	default:
		found, err = admin.ListOffsetsAfterMilli(background, ask.At, ask.Topic)
	}
	one, _ := found.Lookup(ask.Topic, 0)
	return answer{"offset": one.Offset}, first(err, one.Err)
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
