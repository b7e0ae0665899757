// The Java client behind the protocol of tests/conformance/programs.py: a JSON object a line in, one a line out.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.*;

public class Conformance {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<Integer, KafkaConsumer<byte[], byte[]>> consumers = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                act(JSON.readTree(line), answer);
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer.put("error", cause.toString());
                answer.put("no_offset", cause instanceof InvalidOffsetException);
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    static void act(JsonNode asked, ObjectNode answer) throws Exception {
        switch (asked.get("do").asText()) {
            case "write" -> write(asked, answer);
            case "write_for" -> writeFor(asked, answer);
            case "open" -> open(asked);
            case "poll" -> poll(asked, answer);
            case "commit" -> consumers.get(asked.get("id").asInt()).commitSync();
            case "close" -> consumers.remove(asked.get("id").asInt()).close();
            default -> {
                try (Admin admin = Admin.create(place(asked))) {
                    administer(admin, asked, answer);
                }
            }
        }
    }

    static void write(JsonNode asked, ObjectNode answer) throws Exception {
        Map<String, Object> config = place(asked);
        config.put("client.id", asked.get("client_id").asText());
        config.put("compression.type", asked.get("codec").asText());
        config.put("linger.ms", 5);
        ArrayNode offsets = answer.putArray("offsets");
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> waiting = new ArrayList<>();
            for (JsonNode each : asked.get("records")) {
                Long timestamp = each.get("timestamp_ms").isNull() ? null : each.get("timestamp_ms").asLong();
                var made = new ProducerRecord<>(
                        asked.get("topic").asText(), 0, timestamp, bytes(each.get("key")), bytes(each.get("value")));
                for (JsonNode header : each.get("headers")) {
                    made.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                var sent = producer.send(made);
                waiting.add(sent);
                if (sent.isDone()) {
                    sent.get(); // not allowed to send: the next one would wait for the same answer
                }
            }
            for (var each : waiting) {
                offsets.add(each.get().offset());
            }
        }
    }

    // Counts on for so many seconds, in partition 0; every record must be taken.
    static void writeFor(JsonNode asked, ObjectNode answer) throws Exception {
        Map<String, Object> config = place(asked);
        config.put("linger.ms", 5);
        long end = System.nanoTime() + asked.get("seconds").asLong() * 1_000_000_000L;
        List<Future<RecordMetadata>> waiting = new ArrayList<>();
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            while (System.nanoTime() < end) {
                byte[] value = ("" + waiting.size()).getBytes();
                waiting.add(producer.send(new ProducerRecord<>(asked.get("topic").asText(), 0, null, value)));
                Thread.sleep(5);
            }
            for (var each : waiting) {
                each.get();
            }
        }
        answer.put("count", waiting.size());
    }

    static Map<String, Object> place(JsonNode asked) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", asked.get("bootstrap").asText());
        asked.get("security").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        if (config.get("sasl.oauthbearer.token.endpoint.url") instanceof String token) {
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", token);
        }
        return config;
    }

    static void open(JsonNode asked) {
        Map<String, Object> config = place(asked);
        config.put("auto.offset.reset", asked.get("reset").asText());
        config.put("enable.auto.commit", false);
        config.put("metadata.max.age.ms", 1000);
        config.put("max.poll.records", 10);
        if (!asked.get("fetch_bytes").isNull()) {
            config.put("max.partition.fetch.bytes", asked.get("fetch_bytes").asInt());
        }
        String topic = asked.get("topic").asText();
        boolean grouped = !asked.get("group").isNull();
        if (grouped) {
            config.put("group.id", asked.get("group").asText());
            config.put("partition.assignment.strategy", RangeAssignor.class.getName());
            config.put("session.timeout.ms", asked.get("session_ms").asInt());
            config.put("heartbeat.interval.ms", asked.get("heartbeat_ms").asInt());
            if (!asked.get("instance").isNull()) {
                config.put("group.instance.id", asked.get("instance").asText());
            }
        }
        var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumers.put(asked.get("id").asInt(), consumer);
        if (grouped) {
            consumer.subscribe(List.of(topic));
        } else {
            var place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seek(place, asked.get("start").asLong(0));
        }
    }

    static void poll(JsonNode asked, ObjectNode answer) {
        var consumer = consumers.get(asked.get("id").asInt());
        ArrayNode items = answer.putArray("items");
        for (var each : consumer.poll(Duration.ofMillis(asked.get("ms").asLong()))) {
            ObjectNode item = items.addObject();
            item.put("partition", each.partition()).put("offset", each.offset());
            item.put("key", each.key()).put("value", each.value());
            ArrayNode headers = item.putArray("headers");
            for (Header header : each.headers()) {
                headers.addArray().add(header.key()).add(header.value());
            }
        }
        ArrayNode partitions = answer.putArray("partitions");
        consumer.assignment().forEach(place -> partitions.add(place.partition()));
    }

    static void administer(Admin admin, JsonNode asked, ObjectNode answer) throws Exception {
        String topic = asked.path("topic").asText();
        String group = asked.path("group").asText();
        var place = new TopicPartition(topic, 0);
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        switch (asked.get("do").asText()) {
            case "offset" -> answer.put("offset", offset(admin, place, asked.get("at").asLong()));
            case "create" -> {
                Map<String, String> configs = new HashMap<>();
                asked.get("configs").fields().forEachRemaining(each -> configs.put(each.getKey(), each.getValue().asText()));
                var made = new NewTopic(topic, asked.get("partitions").asInt(), (short) 3).configs(configs);
                admin.createTopics(List.of(made)).all().get();
            }
            case "count" -> answer.put(
                    "count", admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
            case "config" -> answer.put(
                    "value",
                    admin.describeConfigs(List.of(resource)).all().get().get(resource).get(asked.get("name").asText()).value());
            case "set" -> {
                var entry = new ConfigEntry(asked.get("name").asText(), asked.get("value").asText());
                var change = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            }
            case "grow" -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(asked.get("partitions").asInt())))
                    .all().get();
            case "delete" -> admin.deleteTopics(List.of(topic)).all().get();
            case "delete_records" -> admin.deleteRecords(
                    Map.of(place, RecordsToDelete.beforeOffset(asked.get("before").asLong()))).all().get();
            case "groups" -> {
                ObjectNode groups = answer.putObject("groups");
                admin.listConsumerGroups().all().get()
                        .forEach(each -> groups.put(each.groupId(), each.state().map(Object::toString).orElse("")));
            }
            case "group" -> {
                var found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                answer.put("state", found.state().toString()).put("members", found.members().size());
            }
            case "committed" -> {
                ObjectNode offsets = answer.putObject("offsets");
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                        .forEach((each, stored) -> offsets.put("" + each.partition(), stored.offset()));
            }
            case "delete_group" -> admin.deleteConsumerGroups(List.of(group)).all().get();
            default -> throw new IllegalArgumentException(asked.toString());
        }
    }

    static long offset(Admin admin, TopicPartition place, long at) throws Exception {
        OffsetSpec spec = at == -1 ? OffsetSpec.latest() : at == -2 ? OffsetSpec.earliest() : OffsetSpec.forTimestamp(at);
        return admin.listOffsets(Map.of(place, spec)).all().get().get(place).offset();
    }

    static byte[] bytes(JsonNode node) throws Exception {
        return node.isNull() ? null : node.binaryValue();
    }
}
