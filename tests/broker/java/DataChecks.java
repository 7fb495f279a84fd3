import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** Producing and reading: codecs, acknowledgements, sizes, offsets. */
final class DataChecks extends Support {
    static void codecs() throws Exception {
        Random random = new Random(7);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String topic = fresh("codec-" + codec);
            List<String> sent = new ArrayList<>();
            try (Admin admin = admin(); Producer<byte[], byte[]> producer = producer(Map.of("compression.type", codec, "linger.ms", "20"))) {
                create(admin, topic, 2);
                List<Future<RecordMetadata>> places = new ArrayList<>();
                long start = System.currentTimeMillis();
                for (int i = 0; i < 500; i++) {
                    byte[] key = i % 7 == 0 ? null : ("key-" + i).getBytes(StandardCharsets.UTF_8);
                    byte[] value = i % 11 == 0 ? null : new byte[random.nextInt(3000)];
                    if (value != null && i % 2 == 0) {
                        random.nextBytes(value);
                    }
                    ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, i % 2, start + i, key, value);
                    record.headers().add("index", new byte[] {(byte) i}).add("empty", null).add("index", new byte[0]);
                    places.add(producer.send(record));
                    sent.add(i % 2 + "/" + i / 2 + " " + (start + i) + " " + Arrays.toString(key) + Arrays.hashCode(value)
                        + Arrays.toString(record.headers().toArray()));
                }
                for (int i = 0; i < places.size(); i++) {
                    equal((long) (i / 2), places.get(i).get().offset(), "offset of a " + codec + " record");
                }
            }
            List<String> read = new ArrayList<>();
            for (ConsumerRecord<byte[], byte[]> record : readAll(topic, 2, 500, Map.of())) {
                read.add(record.partition() + "/" + record.offset() + " " + record.timestamp() + " " + Arrays.toString(record.key())
                    + Arrays.hashCode(record.value()) + Arrays.toString(record.headers().toArray()));
            }
            equal(new TreeSet<>(sent), new TreeSet<>(read), "records in " + codec);
        }
    }

    static void acks() throws Exception {
        try (Admin admin = admin()) {
            for (String acks : List.of("0", "1", "all")) {
                String topic = fresh("acks-" + acks);
                create(admin, topic, 1);
                try (Producer<byte[], byte[]> producer = producer(Map.of("acks", acks, "enable.idempotence", "false"))) {
                    RecordMetadata placed = null;
                    for (int i = 0; i < 100; i++) {
                        placed = producer.send(new ProducerRecord<>(topic, 0, null, new byte[] {(byte) i})).get();
                    }
                    equal(acks.equals("0") ? -1L : 99L, placed.offset(), "offset with acks=" + acks);
                }
                List<ConsumerRecord<byte[], byte[]>> read = readAll(topic, 1, 100, Map.of());
                for (int i = 0; i < 100; i++) {
                    equal((byte) i, read.get(i).value()[0], "order with acks=" + acks);
                }
            }
        }
    }

    static void sizes() throws Exception {
        String topic = fresh("sizes");
        try (Admin admin = admin(); Producer<byte[], byte[]> producer = producer(Map.of("max.request.size", "8000000"))) {
            create(admin, topic, 1);
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[1_000_000])).get();
            raises(RecordTooLargeException.class, () -> get(producer.send(new ProducerRecord<>(topic, 0, null, new byte[1_100_000]))));
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[10])).get();
            // The first batch is returned even if it is larger than what was asked for.
            List<ConsumerRecord<byte[], byte[]>> read =
                readAll(topic, 1, 2, Map.of("max.partition.fetch.bytes", "1000", "fetch.max.bytes", "1000"));
            equal(1_000_000, read.get(0).value().length, "the large record");
            equal(10, read.get(1).value().length, "the small one after it");

            alter(admin, new ConfigResource(ConfigResource.Type.TOPIC, topic), "max.message.bytes", "2000000", AlterConfigOp.OpType.SET);
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[1_900_000])).get();
            equal(1_900_000, readAll(topic, 1, 3, Map.of()).get(2).value().length, "larger once it is allowed");
        }
    }

    static void offsets() throws Exception {
        String topic = fresh("offsets");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = admin(); Producer<byte[], byte[]> producer = producer(Map.of("compression.type", "lz4", "linger.ms", "50"));
             Consumer<byte[], byte[]> consumer = consumer(Map.of())) {
            create(admin, topic, 1);
            long start = System.currentTimeMillis() - 100_000;
            long[] stamps = {0, 10, 20, 90, 40, 50, 60, 70, 80, 30};
            List<Future<RecordMetadata>> places = new ArrayList<>();
            for (long stamp : stamps) {
                places.add(producer.send(new ProducerRecord<>(topic, 0, start + stamp, null, new byte[100])));
            }
            for (Future<RecordMetadata> place : places) {
                place.get();
            }
            equal(0L, consumer.beginningOffsets(List.of(partition)).get(partition), "beginning");
            equal(10L, consumer.endOffsets(List.of(partition)).get(partition), "end");
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, start + 15)).get(partition);
            equal(2L, found.offset(), "the first record at or after a time, inside a compressed batch");
            equal(start + 20, found.timestamp(), "its timestamp");
            equal(null, consumer.offsetsForTimes(Map.of(partition, start + 1000)).get(partition), "no record so late");
            equal(0L, listed(admin, partition, OffsetSpec.earliest()).offset(), "earliest");
            equal(10L, listed(admin, partition, OffsetSpec.latest()).offset(), "latest");
            ListOffsetsResult.ListOffsetsResultInfo newest = listed(admin, partition, OffsetSpec.maxTimestamp());
            equal(3L, newest.offset(), "the offset of the greatest timestamp");
            equal(start + 90, newest.timestamp(), "the greatest timestamp");
            equal(2L, listed(admin, partition, OffsetSpec.forTimestamp(start + 15)).offset(), "by time");

            equal(4L, get(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(partition)).lowWatermark(),
                "low watermark");
            equal(4L, consumer.beginningOffsets(List.of(partition)).get(partition), "beginning after a deletion");
            List<ConsumerRecord<byte[], byte[]>> rest = readAll(topic, 1, 6, Map.of());
            equal(4L, rest.get(0).offset(), "first record after a deletion, in the middle of a batch");
            raises(org.apache.kafka.common.errors.OffsetOutOfRangeException.class,
                () -> get(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(11))).all()));
        }
    }

    static void outOfRange() throws Exception {
        String topic = fresh("range");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = admin(); Producer<byte[], byte[]> producer = producer(Map.of());
             Consumer<byte[], byte[]> strict = consumer(Map.of("auto.offset.reset", "none"));
             Consumer<byte[], byte[]> lenient = consumer(Map.of("auto.offset.reset", "earliest"))) {
            create(admin, topic, 1);
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[1])).get();
            strict.assign(List.of(partition));
            strict.seek(partition, 50);
            raises(org.apache.kafka.clients.consumer.OffsetOutOfRangeException.class, () -> {
                for (long end = System.currentTimeMillis() + LIMIT_MS; System.currentTimeMillis() < end; ) {
                    strict.poll(Duration.ofMillis(100));
                }
            });
            lenient.assign(List.of(partition));
            lenient.seek(partition, 50);
            equal(0L, poll(lenient, 1).get(0).offset(), "reset to the earliest");
        }
    }

    static void automaticCreation() throws Exception {
        String made = fresh("made");
        String unmade = fresh("unmade");
        try (Admin admin = admin(); Producer<byte[], byte[]> producer = producer(Map.of());
             Consumer<byte[], byte[]> consumer = consumer(Map.of("group.id", fresh("group"), "allow.auto.create.topics", "false"))) {
            producer.send(new ProducerRecord<>(made, null, new byte[1])).get();
            consumer.subscribe(List.of(unmade));
            consumer.poll(Duration.ofMillis(1500));
            Set<String> listed = get(admin.listTopics().names());
            check(listed.contains(made), "a produce makes a topic: " + listed);
            check(!listed.contains(unmade), "a reader that says no makes none: " + listed);
        }
    }
}
