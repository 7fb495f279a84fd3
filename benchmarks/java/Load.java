import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Load on the Java clients, commanded line by line: "verb name=value ..." in, "ok name=value ..." or "error ..." out.
 * One JVM serves all rounds against all brokers, so that none of them pays for its warming up.
 * A name that starts with "p." or "c." is a setting of the producer or the consumer.
 */
public class Load {
    static final int PAYLOADS = 1024;

    public static void main(String[] words) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] parts = line.trim().split(" ");
            Map<String, String> args = new HashMap<>();
            for (int i = 1; i < parts.length; i++) {
                String[] pair = parts[i].split("=", 2);
                args.put(pair[0], pair[1]);
            }
            try {
                System.out.println("ok " + run(parts[0], args));
            } catch (Throwable failure) {
                System.out.println("error " + failure.toString().replace('\n', ' '));
            }
            System.out.flush();
        }
        System.exit(0);
    }

    static String run(String verb, Map<String, String> args) throws Exception {
        switch (verb) {
            case "produce": return produce(args);
            case "consume": return consume(args);
            case "latency": return latency(args);
            case "flood": return flood(args);
            case "share": return ShareLoad.share(args);
            default: throw new IllegalArgumentException("unknown verb " + verb);
        }
    }

    /** Sends for `seconds`, or `records` records, and waits for every acknowledgement. */
    static String produce(Map<String, String> args) throws Exception {
        String topic = args.get("topic");
        byte[][] payloads = payloads(Integer.parseInt(args.get("size")));
        byte[][] keys = args.containsKey("keyed") ? payloads(8) : null;
        long records = Long.parseLong(args.getOrDefault("records", "0"));
        double seconds = Double.parseDouble(args.getOrDefault("seconds", "0"));
        AtomicLong failed = new AtomicLong();
        Callback counted = (place, error) -> {
            if (error != null && failed.incrementAndGet() == 1) {
                System.err.println(error);
            }
        };
        try (KafkaProducer<byte[], byte[]> producer = producer(args)) {
            producer.partitionsFor(topic);
            long start = System.nanoTime();
            long end = start + (long) (seconds * 1e9);
            long sent = 0;
            while (records > 0 ? sent < records : sent % 64 != 0 || System.nanoTime() < end) {
                int slot = (int) (sent++ % PAYLOADS);
                producer.send(new ProducerRecord<>(topic, keys == null ? null : keys[slot], payloads[slot]), counted);
            }
            producer.flush();
            double took = (System.nanoTime() - start) / 1e9;
            return "records=" + (sent - failed.get()) + " failed=" + failed.get() + " seconds=" + took;
        }
    }

    /** Reads `records` records of a topic from its beginning. The time runs from the first records to the last. */
    static String consume(Map<String, String> args) {
        long wanted = Long.parseLong(args.get("records"));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(args)) {
            List<TopicPartition> partitions = partitions(consumer, args.get("topic"));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long count = 0;
            long bytes = 0;
            long ignored = 0;
            long started = System.nanoTime();
            long first = 0;
            long deadline = started + 120_000_000_000L;
            while (count < wanted && System.nanoTime() < deadline) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(1000));
                if (first == 0 && !records.isEmpty()) {
                    first = System.nanoTime();
                    ignored = records.count();
                }
                count += records.count();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    bytes += record.value().length;
                }
            }
            long end = System.nanoTime();
            return "records=" + (count - ignored) + " all=" + count + " bytes=" + bytes + " seconds=" + (end - first) / 1e9
                + " total=" + (end - started) / 1e9;
        }
    }

    /** Sends at a fixed rate, whatever the broker does, and times acknowledgement and receipt of each record. */
    static String latency(Map<String, String> args) throws Exception {
        String topic = args.get("topic");
        int rate = Integer.parseInt(args.get("rate"));
        int skipped = (int) (rate * Double.parseDouble(args.get("warmup")));
        int count = skipped + (int) (rate * Double.parseDouble(args.get("seconds")));
        byte[][] payloads = payloads(Integer.parseInt(args.get("size")));
        long[] acknowledged = new long[count];
        long[] received = new long[count];
        AtomicInteger failed = new AtomicInteger();
        CountDownLatch ready = new CountDownLatch(1);
        AtomicBoolean stop = new AtomicBoolean();
        AtomicInteger arrived = new AtomicInteger();
        Thread reader = new Thread(() -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(args)) {
                List<TopicPartition> partitions = partitions(consumer, topic);
                consumer.assign(partitions);
                consumer.seekToEnd(partitions);
                partitions.forEach(consumer::position);
                consumer.poll(Duration.ofMillis(10));
                ready.countDown();
                while (!stop.get() && arrived.get() < count) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                        long now = System.nanoTime();
                        ByteBuffer value = ByteBuffer.wrap(record.value());
                        int index = value.getInt();
                        received[index] = now - value.getLong();
                        arrived.incrementAndGet();
                    }
                }
            }
        });
        reader.start();
        ready.await();
        long start = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer = producer(args)) {
            producer.partitionsFor(topic);
            start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                long due = start + i * 1_000_000_000L / rate;
                for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                byte[] value = payloads[i % PAYLOADS].clone();
                long sent = System.nanoTime();
                ByteBuffer.wrap(value).putInt(i).putLong(sent);
                int index = i;
                producer.send(new ProducerRecord<>(topic, value), (place, error) -> {
                    acknowledged[index] = System.nanoTime() - sent;
                    if (error != null) {
                        failed.incrementAndGet();
                    }
                });
            }
            producer.flush();
        }
        double took = (System.nanoTime() - start) / 1e9;
        long patience = System.nanoTime() + 10_000_000_000L;
        while (arrived.get() < count && System.nanoTime() < patience) {
            Thread.sleep(5);
        }
        stop.set(true);
        reader.join();
        return "records=" + count + " arrived=" + arrived.get() + " failed=" + failed.get() + " seconds=" + took
            + quantiles("ack", Arrays.copyOfRange(acknowledged, skipped, count))
            + quantiles("receipt", Arrays.copyOfRange(received, skipped, count));
    }

    /** Many producers of large requests and many consumers at once, each consumer on a partition of its own. */
    static String flood(Map<String, String> args) throws Exception {
        String topic = args.get("topic");
        int producers = Integer.parseInt(args.get("producers"));
        int consumers = Integer.parseInt(args.get("consumers"));
        byte[][] payloads = payloads(Integer.parseInt(args.get("size")), 4);
        double seconds = Double.parseDouble(args.get("seconds"));
        AtomicLong sent = new AtomicLong();
        AtomicLong read = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        AtomicBoolean stop = new AtomicBoolean();
        CountDownLatch ready = new CountDownLatch(consumers);
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < consumers; n++) {
            int number = n;
            threads.add(new Thread(() -> {
                try (KafkaConsumer<byte[], byte[]> consumer = consumer(args)) {
                    List<TopicPartition> all = partitions(consumer, topic);
                    List<TopicPartition> own = List.of(all.get(number % all.size()));
                    consumer.assign(own);
                    consumer.seekToEnd(own);
                    consumer.position(own.get(0));
                    ready.countDown();
                    while (!stop.get()) {
                        read.addAndGet(consumer.poll(Duration.ofMillis(200)).count());
                    }
                } catch (Throwable failure) {
                    failed.incrementAndGet();
                    ready.countDown();
                }
            }));
        }
        for (int n = 0; n < producers; n++) {
            threads.add(new Thread(() -> {
                try (KafkaProducer<byte[], byte[]> producer = producer(args)) {
                    ready.await();
                    for (int i = 0; !stop.get(); i++) {
                        producer.send(new ProducerRecord<>(topic, payloads[i % payloads.length]), (place, error) -> {
                            (error == null ? sent : failed).incrementAndGet();
                        });
                    }
                } catch (Throwable failure) {
                    failed.incrementAndGet();
                }
            }));
        }
        threads.forEach(Thread::start);
        ready.await();
        Thread.sleep((long) (seconds * 1000));
        stop.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        return "records=" + sent.get() + " read=" + read.get() + " failed=" + failed.get() + " seconds=" + seconds;
    }

    static String quantiles(String name, long[] nanos) {
        Arrays.sort(nanos);
        StringBuilder text = new StringBuilder();
        for (double share : new double[] {0.5, 0.99, 0.999, 1.0}) {
            double value = nanos[(int) Math.min(nanos.length - 1, Math.floor(share * nanos.length))] / 1e6;
            text.append(String.format(" %s_p%s=%.4f", name, share == 1.0 ? "100" : String.valueOf(share * 100).replace(".0", ""), value));
        }
        return text.toString();
    }

    static List<TopicPartition> partitions(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (PartitionInfo info : consumer.partitionsFor(topic)) {
            partitions.add(new TopicPartition(topic, info.partition()));
        }
        return partitions;
    }

    static byte[][] payloads(int size) {
        return payloads(size, PAYLOADS);
    }

    static byte[][] payloads(int size, int count) {
        Random random = new Random(size);
        byte[][] payloads = new byte[count][size];
        for (byte[] payload : payloads) {
            random.nextBytes(payload);
        }
        return payloads;
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, String> args) {
        return new KafkaProducer<>(settings(args, "p."), new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, String> args) {
        return new KafkaConsumer<>(settings(args, "c."), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Properties settings(Map<String, String> args, String prefix) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args.get("bootstrap"));
        for (Map.Entry<String, String> entry : args.entrySet()) {
            if (entry.getKey().startsWith(prefix)) {
                settings.put(entry.getKey().substring(prefix.length()), entry.getValue());
            }
        }
        return settings;
    }
}
