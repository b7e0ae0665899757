// Transactions of the Java client behind the protocol of tests/conformance/programs.py, one call of the client for each
// line. Producers and consumers have names. Errors are the client's own.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Transactions {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
    static final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                act(JSON.readTree(line), answer);
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer.put("error", cause.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    static void act(JsonNode asked, ObjectNode answer) throws Exception {
        String name = asked.path("name").asText();
        var producer = producers.get(name);
        var consumer = consumers.get(name);
        var place = new TopicPartition(asked.path("topic").asText(), asked.path("partition").asInt());
        switch (asked.get("do").asText()) {
            case "producer" -> producers.put(
                    name, new KafkaProducer<>(settings(asked), new StringSerializer(), new StringSerializer()));
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> {
                Long time = asked.hasNonNull("time_ms") ? asked.get("time_ms").asLong() : null;
                String value = asked.get("value").asText();
                var sent = producer.send(new ProducerRecord<>(place.topic(), place.partition(), time, null, value));
                producer.flush();
                answer.put("offset", sent.get().offset());
            }
            case "offsets" -> {
                var offset = new OffsetAndMetadata(asked.get("offset").asLong(), asked.get("metadata").asText());
                var of = asked.hasNonNull("member")
                        ? consumers.get(asked.get("member").asText()).groupMetadata()
                        : new ConsumerGroupMetadata(asked.get("group").asText());
                producer.sendOffsetsToTransaction(Map.of(place, offset), of);
            }
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "end_producer" -> producers.remove(name).close(Duration.ZERO);
            case "consumer" -> consumers.put(
                    name, new KafkaConsumer<>(settings(asked), new StringDeserializer(), new StringDeserializer()));
            case "assign" -> {
                consumer.assign(List.of(place));
                consumer.seekToBeginning(List.of(place));
            }
            case "subscribe" -> consumer.subscribe(List.of(place.topic()));
            case "poll" -> {
                ArrayNode items = answer.putArray("items");
                for (var each : consumer.poll(Duration.ofMillis(asked.get("ms").asLong()))) {
                    items.addArray().add(each.partition()).add(each.offset()).add(each.value());
                }
            }
            case "end" -> {
                if (!consumer.assignment().contains(place)) {
                    consumer.assign(List.of(place));
                }
                consumer.seekToEnd(List.of(place));
                answer.put("offset", consumer.position(place));
            }
            case "at_time" -> {
                var found = consumer.offsetsForTimes(Map.of(place, asked.get("time_ms").asLong())).get(place);
                answer.put("offset", found == null ? null : found.offset());
            }
            case "committed" -> {
                var found = consumer.committed(Set.of(place)).get(place);
                answer.put("offset", found == null ? null : found.offset());
                answer.put("metadata", found == null ? null : found.metadata());
            }
            case "end_consumer" -> consumers.remove(name).close();
            default -> {
                try (Admin admin = Admin.create(settings(asked))) {
                    administer(admin, place, asked.get("do").asText(), answer);
                }
            }
        }
    }

    static void administer(Admin admin, TopicPartition place, String act, ObjectNode answer) throws Exception {
        switch (act) {
            case "feature" -> answer.put(
                    "level",
                    admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version")
                            .maxVersionLevel());
            case "epochs" -> {
                ArrayNode epochs = answer.putArray("epochs");
                for (var each : admin.describeProducers(List.of(place)).all().get().get(place).activeProducers()) {
                    epochs.addArray().add(each.producerId()).add(each.producerEpoch());
                }
            }
            default -> throw new IllegalArgumentException(act);
        }
    }

    static Map<String, Object> settings(JsonNode asked) {
        Map<String, Object> settings = new HashMap<>();
        asked.get("settings").fields().forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        return settings;
    }
}
