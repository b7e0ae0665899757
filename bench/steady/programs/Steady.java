// The Java client behind the line protocol of bench/steady/programs/protocol.py. Only what versions 3.9 and 4.1 share.
//
// Its producer is idempotent as it comes. Set beyond the address: auto.offset.reset of the member.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Steady {
    static final long PAUSE_MS = 50;
    static final long POLL_MS = 100;
    static final Object orders = new Object();
    static boolean sleeping = false;
    static boolean ended = false;

    static String topic;
    static int partitions;
    static String name;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
        String role = arguments[3];
        name = arguments[4];
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", arguments[0]);
        for (String each : Arrays.copyOfRange(arguments, 5, arguments.length)) {
            int at = each.indexOf('=');
            config.put(each.substring(0, at), each.substring(at + 1));
        }
        Thread reading = new Thread(Steady::readOrders, "orders");
        reading.setDaemon(true);
        reading.start();
        if (role.equals("writer")) {
            write(config);
        } else {
            read(config, role.equals("member"));
        }
        System.exit(0);
    }

    static void write(Map<String, Object> config) throws Exception {
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            say("ready");
            for (int number = 0; goOn(); number++) {
                long began = System.nanoTime();
                String value = String.format("%s:%08d", name, number);
                byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
                try {
                    producer.send(new ProducerRecord<>(topic, number % partitions, null, bytes), (made, error) -> {
                        if (error == null) {
                            say("w " + made.partition() + " " + made.offset() + " " + value);
                        } else {
                            failed(error);
                        }
                    });
                } catch (KafkaException error) {
                    failed(error);
                }
                Thread.sleep(Math.max(0, PAUSE_MS - (System.nanoTime() - began) / 1_000_000));
            }
        }
    }

    static void read(Map<String, Object> config, boolean member) throws Exception {
        if (member) {
            config.put("group.id", name);
            config.put("auto.offset.reset", "earliest");
        }
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            if (member) {
                consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {}

                    public void onPartitionsAssigned(Collection<TopicPartition> added) {
                        say("b " + consumer.assignment().size());
                    }
                });
            } else {
                List<TopicPartition> places = new ArrayList<>();
                for (int number = 0; number < partitions; number++) {
                    places.add(new TopicPartition(topic, number));
                }
                consumer.assign(places);
                places.forEach(place -> consumer.seek(place, 0));
            }
            say("ready");
            while (goOn()) {
                try {
                    for (var each : consumer.poll(Duration.ofMillis(POLL_MS))) {
                        String value = new String(each.value(), StandardCharsets.UTF_8);
                        say("r " + each.partition() + " " + each.offset() + " " + value);
                    }
                } catch (KafkaException error) {
                    failed(error);
                    Thread.sleep(PAUSE_MS);
                }
            }
        }
    }

    static void readOrders() {
        try (var in = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                synchronized (orders) {
                    switch (line.strip()) {
                        case "sleep" -> sleeping = true;
                        case "wake" -> sleeping = false;
                        case "end" -> ended = true;
                        default -> {}
                    }
                    orders.notifyAll();
                }
            }
        } catch (IOException error) {
            failed(error);
        }
        synchronized (orders) {
            if (!ended) {
                Runtime.getRuntime().halt(1);
            }
        }
    }

    static boolean goOn() throws InterruptedException {
        synchronized (orders) {
            while (sleeping && !ended) {
                orders.wait();
            }
            return !ended;
        }
    }

    static void failed(Throwable error) {
        say("e " + error.toString().replaceAll("\\s+", " "));
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
