import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** Clients and assertions that the checks share. */
class Support {
    interface Check {
        void run() throws Exception;
    }

    static final long LIMIT_MS = 30_000;
    static String address;
    static int names;

    static String fresh(String stem) {
        return stem + "-" + names++ + "-" + Long.toString(System.nanoTime(), 36);
    }

    static Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", address, "request.timeout.ms", "15000", "default.api.timeout.ms", "20000"));
    }

    static Producer<byte[], byte[]> producer(Map<String, String> settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", address);
        all.put("delivery.timeout.ms", "20000");
        all.put("request.timeout.ms", "15000");
        all.putAll(settings);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static Consumer<byte[], byte[]> consumer(Map<String, String> settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", address);
        all.put("enable.auto.commit", "false");
        all.put("default.api.timeout.ms", "20000");
        all.putAll(settings);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void create(Admin admin, String topic, int partitions) {
        get(admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all());
    }

    static void alter(Admin admin, ConfigResource resource, String name, String value, AlterConfigOp.OpType operation) {
        get(admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry(name, value), operation)))).all());
    }

    static ListOffsetsResult.ListOffsetsResultInfo listed(Admin admin, TopicPartition partition, OffsetSpec spec) {
        return get(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition));
    }

    /** Reads a topic from its beginning until `count` records came, and once more to see that there are no others. */
    static List<ConsumerRecord<byte[], byte[]>> readAll(String topic, int partitions, int count, Map<String, String> settings) {
        try (Consumer<byte[], byte[]> consumer = consumer(settings)) {
            List<TopicPartition> assigned = new ArrayList<>();
            for (int i = 0; i < partitions; i++) {
                assigned.add(new TopicPartition(topic, i));
            }
            consumer.assign(assigned);
            consumer.seekToBeginning(assigned);
            List<ConsumerRecord<byte[], byte[]>> records = poll(consumer, count);
            consumer.poll(Duration.ofMillis(100)).forEach(records::add);
            equal(count, records.size(), "number of records in " + topic);
            return records;
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(Consumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        until(count + " records", () -> {
            consumer.poll(Duration.ofMillis(100)).forEach(records::add);
            return records.size() >= count;
        });
        return records;
    }

    static boolean atEnd(Consumer<byte[], byte[]> consumer) {
        Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment());
        return ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) == end.getValue());
    }

    static void note(ConsumerRecords<byte[], byte[]> records, Set<String> read) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            read.add(record.partition() + "/" + record.offset());
        }
    }

    static Set<String> values(List<ConsumerRecord<byte[], byte[]>> records) {
        Set<String> values = new TreeSet<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            check(values.add(new String(record.value(), StandardCharsets.UTF_8)), "a record came twice");
        }
        return values;
    }

    static <T> T get(Future<T> future) {
        try {
            return future.get(LIMIT_MS, TimeUnit.MILLISECONDS);
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof RuntimeException) {
                throw (RuntimeException) failed.getCause();
            }
            throw new AssertionError(failed.getCause());
        } catch (Exception failed) {
            throw new AssertionError(failed);
        }
    }

    static <T> T get(KafkaFuture<T> future) {
        return get((Future<T>) future.toCompletionStage().toCompletableFuture());
    }

    static void until(String what, BooleanSupplier condition) {
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (!condition.getAsBoolean()) {
            check(System.currentTimeMillis() < end, "not in time: " + what);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object expected, Object found, String what) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    static void raises(Class<? extends Throwable> expected, Check action) {
        raises(expected, expected, action);
    }

    static void raises(Class<? extends Throwable> expected, Class<? extends Throwable> other, Check action) {
        try {
            action.run();
        } catch (Throwable raised) {
            for (Throwable cause = raised; cause != null; cause = cause.getCause()) {
                if (expected.isInstance(cause) || other.isInstance(cause)) {
                    return;
                }
            }
            throw new AssertionError("expected " + expected.getSimpleName(), raised);
        }
        throw new AssertionError("expected " + expected.getSimpleName() + ", nothing was raised");
    }
}
