import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** Transactions: what is seen, what is not, and who is fenced. */
final class TransactionChecks extends Support {
    static void transactions() throws Exception {
        String topic = fresh("transactions");
        String id = fresh("id");
        List<String> committed = new ArrayList<>();
        List<String> all = new ArrayList<>();
        try (Admin admin = admin(); Producer<byte[], byte[]> producer = producer(Map.of("transactional.id", id))) {
            create(admin, topic, 3);
            producer.initTransactions();
            for (int round = 0; round < 12; round++) {
                boolean commit = round % 3 != 1;
                producer.beginTransaction();
                for (int i = 0; i < 10; i++) {
                    String value = round + "-" + i;
                    producer.send(new ProducerRecord<>(topic, i % 3, null, value.getBytes(StandardCharsets.UTF_8)));
                    all.add(value);
                    if (commit) {
                        committed.add(value);
                    }
                }
                if (commit) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
            equal(new TreeSet<>(committed), values(readAll(topic, 3, committed.size(), Map.of("isolation.level", "read_committed"))), "committed");
            equal(new TreeSet<>(all), values(readAll(topic, 3, all.size(), Map.of("isolation.level", "read_uncommitted"))), "all");

            TransactionDescription described = get(admin.describeTransactions(List.of(id)).all()).get(id);
            equal(TransactionState.COMPLETE_COMMIT, described.state(), "state of the transaction");
            check(get(admin.listTransactions().all()).stream().anyMatch(listing -> listing.transactionalId().equals(id)), "listed");
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[1])).get();
            TopicPartition partition = new TopicPartition(topic, 0);
            List<ProducerState> states = get(admin.describeProducers(List.of(partition)).partitionResult(partition)).activeProducers();
            equal(1, states.size(), "producers");
            check(states.get(0).currentTransactionStartOffset().isPresent(), "an open transaction: " + states);
            equal(TransactionState.ONGOING, get(admin.describeTransactions(List.of(id)).all()).get(id).state(), "state");
            producer.abortTransaction();
        }
    }

    static void transactionOffsets() throws Exception {
        String source = fresh("source");
        String target = fresh("target");
        String group = fresh("group");
        try (Admin admin = admin(); Producer<byte[], byte[]> feeder = producer(Map.of())) {
            create(admin, source, 1);
            create(admin, target, 1);
            for (int i = 0; i < 30; i++) {
                feeder.send(new ProducerRecord<>(source, 0, null, ("" + i).getBytes(StandardCharsets.UTF_8)));
            }
        }
        Map<String, String> reading = Map.of("group.id", group, "auto.offset.reset", "earliest", "isolation.level", "read_committed", "max.poll.records", "10");
        TopicPartition partition = new TopicPartition(source, 0);
        // Every second attempt aborts and starts again from the committed offsets: each record arrives once all the same.
        for (int attempt = 0, done = 0; done < 30 && attempt < 12; attempt++) {
            try (Consumer<byte[], byte[]> consumer = consumer(reading); Producer<byte[], byte[]> producer = producer(Map.of("transactional.id", group))) {
                producer.initTransactions();
                consumer.subscribe(List.of(source));
                List<ConsumerRecord<byte[], byte[]>> records = poll(consumer, 10);
                equal((long) done, records.get(0).offset(), "where the group stands");
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    producer.send(new ProducerRecord<>(target, 0, null, record.value()));
                }
                long next = records.get(records.size() - 1).offset() + 1;
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(next)), consumer.groupMetadata());
                if (attempt % 2 == 0) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    done = (int) next;
                    equal(next, consumer.committed(Set.of(partition)).get(partition).offset(), "offset after the commit");
                }
            }
        }
        List<ConsumerRecord<byte[], byte[]>> moved = readAll(target, 1, 30, Map.of("isolation.level", "read_committed"));
        for (int i = 0; i < 30; i++) {
            equal("" + i, new String(moved.get(i).value(), StandardCharsets.UTF_8), "order of what was moved");
        }
    }

    static void fencing() throws Exception {
        String topic = fresh("fencing");
        String id = fresh("id");
        try (Admin admin = admin(); Producer<byte[], byte[]> zombie = producer(Map.of("transactional.id", id));
             Producer<byte[], byte[]> heir = producer(Map.of("transactional.id", id))) {
            create(admin, topic, 1);
            zombie.initTransactions();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(topic, 0, null, "lost".getBytes(StandardCharsets.UTF_8))).get();
            heir.initTransactions();
            heir.beginTransaction();
            heir.send(new ProducerRecord<>(topic, 0, null, "kept".getBytes(StandardCharsets.UTF_8))).get();
            heir.commitTransaction();
            try {
                zombie.commitTransaction();
                throw new AssertionError("a fenced producer committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                equal(Set.of("kept"), values(readAll(topic, 1, 1, Map.of("isolation.level", "read_committed"))), "records");
            }
            get(admin.fenceProducers(List.of(id)).all());
            heir.beginTransaction();
            raises(ProducerFencedException.class, InvalidProducerEpochException.class, () -> {
                get(heir.send(new ProducerRecord<>(topic, 0, null, new byte[1])));
                heir.commitTransaction();
            });
        }
    }

    static void stableOffset() throws Exception {
        String topic = fresh("stable");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = admin(); Producer<byte[], byte[]> plain = producer(Map.of());
             Producer<byte[], byte[]> open = producer(Map.of("transactional.id", fresh("id")));
             Consumer<byte[], byte[]> stable = consumer(Map.of("isolation.level", "read_committed"))) {
            create(admin, topic, 1);
            plain.send(new ProducerRecord<>(topic, 0, null, new byte[1])).get();
            open.initTransactions();
            open.beginTransaction();
            open.send(new ProducerRecord<>(topic, 0, null, new byte[2])).get();
            plain.send(new ProducerRecord<>(topic, 0, null, new byte[3])).get();
            equal(1L, stable.endOffsets(List.of(partition)).get(partition), "end under read_committed while a transaction is open");
            stable.assign(List.of(partition));
            stable.seekToBeginning(List.of(partition));
            equal(1, poll(stable, 1).size(), "records before the open transaction");
            check(stable.poll(Duration.ofMillis(700)).isEmpty(), "records past the open transaction");
            open.commitTransaction();
            equal(2, poll(stable, 2).size(), "records after the commit");
            equal(4L, stable.endOffsets(List.of(partition)).get(partition), "end after the commit, its marker counted");
        }
    }
}
