import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** Classic consumer groups: rebalances, commits, static members. */
final class GroupChecks extends Support {
    static void groups() throws Exception {
        String topic = fresh("groups");
        for (String assignor : List.of("org.apache.kafka.clients.consumer.RangeAssignor",
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor")) {
            String group = fresh("group");
            Map<String, String> settings = Map.of("group.id", group, "partition.assignment.strategy", assignor,
                "auto.offset.reset", "earliest", "heartbeat.interval.ms", "200");
            try (Admin admin = admin()) {
                if (!get(admin.listTopics().names()).contains(topic)) {
                    create(admin, topic, 4);
                    try (Producer<byte[], byte[]> producer = producer(Map.of())) {
                        for (int i = 0; i < 400; i++) {
                            producer.send(new ProducerRecord<>(topic, i % 4, null, new byte[] {(byte) i}));
                        }
                        producer.flush();
                    }
                }
                Set<String> read = new HashSet<>();
                try (Consumer<byte[], byte[]> first = consumer(settings); Consumer<byte[], byte[]> second = consumer(settings)) {
                    first.subscribe(List.of(topic));
                    until("the first member has it all", () -> {
                        note(first.poll(Duration.ofMillis(100)), read);
                        return first.assignment().size() == 4;
                    });
                    second.subscribe(List.of(topic));
                    until("two members share", () -> {
                        note(first.poll(Duration.ofMillis(100)), read);
                        note(second.poll(Duration.ofMillis(100)), read);
                        return first.assignment().size() == 2 && second.assignment().size() == 2;
                    });
                    Set<TopicPartition> both = new HashSet<>(first.assignment());
                    both.addAll(second.assignment());
                    equal(4, both.size(), "no partition twice");
                    until("everything is read", () -> {
                        note(first.poll(Duration.ofMillis(100)), read);
                        note(second.poll(Duration.ofMillis(100)), read);
                        return read.size() == 400 && atEnd(first) && atEnd(second);
                    });
                    first.commitSync();
                    second.commitSync();
                }
                try (Consumer<byte[], byte[]> third = consumer(settings)) {
                    third.subscribe(List.of(topic));
                    until("the third member has it all", () -> {
                        check(third.poll(Duration.ofMillis(100)).isEmpty(), "a committed record came again");
                        return third.assignment().size() == 4;
                    });
                    for (TopicPartition partition : third.assignment()) {
                        equal(100L, third.position(partition), "resumed at the committed offset");
                    }
                    third.commitAsync((offsets, error) -> check(error == null, "commitAsync " + error));
                    third.unsubscribe();
                }
            }
        }
    }

    static void groupAdmin() throws Exception {
        String topic = fresh("group-admin");
        String group = fresh("group");
        TopicPartition zero = new TopicPartition(topic, 0);
        TopicPartition one = new TopicPartition(topic, 1);
        try (Admin admin = admin(); Producer<byte[], byte[]> producer = producer(Map.of())) {
            create(admin, topic, 2);
            for (int i = 0; i < 20; i++) {
                producer.send(new ProducerRecord<>(topic, i % 2, null, new byte[1])).get();
            }
            try (Consumer<byte[], byte[]> consumer = consumer(Map.of("group.id", group, "auto.offset.reset", "earliest", "client.id", "the-client"))) {
                consumer.subscribe(List.of(topic));
                poll(consumer, 20);
                consumer.commitSync(Map.of(zero, new OffsetAndMetadata(7, Optional.of(0), "seven"), one, new OffsetAndMetadata(8)));
                ConsumerGroupDescription described = get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
                equal("Stable", described.state().toString(), "state");
                MemberDescription member = described.members().iterator().next();
                equal("the-client", member.clientId(), "client id");
                equal(Set.of(zero, one), member.assignment().topicPartitions(), "assignment");
                check(get(admin.listConsumerGroups().all()).stream().anyMatch(listing -> listing.groupId().equals(group)), "listed");
                raises(GroupNotEmptyException.class, () -> get(admin.deleteConsumerGroups(List.of(group)).all()));
                equal("seven", consumer.committed(Set.of(zero)).get(zero).metadata(), "metadata of a commit");
            }
            until("the group is empty", () ->
                get(admin.describeConsumerGroups(List.of(group)).all()).get(group).state().toString().equals("Empty"));
            Map<TopicPartition, OffsetAndMetadata> offsets = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
            equal(7L, offsets.get(zero).offset(), "offset");
            get(admin.alterConsumerGroupOffsets(group, Map.of(zero, new OffsetAndMetadata(3))).all());
            get(admin.deleteConsumerGroupOffsets(group, Set.of(one)).all());
            offsets = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
            equal(3L, offsets.get(zero).offset(), "altered");
            check(offsets.get(one) == null, "deleted: " + offsets);
            get(admin.deleteConsumerGroups(List.of(group)).all());
            check(get(admin.listConsumerGroups().all()).stream().noneMatch(listing -> listing.groupId().equals(group)), "deleted");
            check(get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).isEmpty(), "offsets went with it");
        }
    }

    static void staticMembers() throws Exception {
        String topic = fresh("static");
        String group = fresh("group");
        Map<String, String> one = Map.of("group.id", group, "group.instance.id", "one", "auto.offset.reset", "earliest", "heartbeat.interval.ms", "200");
        Map<String, String> two = Map.of("group.id", group, "group.instance.id", "two", "auto.offset.reset", "earliest", "heartbeat.interval.ms", "200");
        try (Admin admin = admin(); Consumer<byte[], byte[]> first = consumer(one)) {
            create(admin, topic, 4);
            Set<TopicPartition> owned;
            int generation;
            try (Consumer<byte[], byte[]> second = consumer(two)) {
                first.subscribe(List.of(topic));
                second.subscribe(List.of(topic));
                until("two static members share", () -> {
                    first.poll(Duration.ofMillis(100));
                    second.poll(Duration.ofMillis(100));
                    return first.assignment().size() == 2 && second.assignment().size() == 2;
                });
                owned = second.assignment();
                generation = second.groupMetadata().generationId();
            }
            try (Consumer<byte[], byte[]> returned = consumer(two)) {
                returned.subscribe(List.of(topic));
                until("the member is back", () -> {
                    first.poll(Duration.ofMillis(100));
                    returned.poll(Duration.ofMillis(100));
                    return !returned.assignment().isEmpty();
                });
                equal(owned, returned.assignment(), "assignment of the member that returned");
                equal(generation, returned.groupMetadata().generationId(), "no rebalance");
                try (Consumer<byte[], byte[]> twin = consumer(two)) {
                    twin.subscribe(List.of(topic));
                    raises(FencedInstanceIdException.class, () -> {
                        for (long end = System.currentTimeMillis() + LIMIT_MS; System.currentTimeMillis() < end; ) {
                            twin.poll(Duration.ofMillis(100));
                            returned.poll(Duration.ofMillis(100));
                        }
                    });
                }
            }
            get(admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("two")))).all());
        }
    }

    static void pattern() throws Exception {
        String stem = fresh("pattern");
        try (Admin admin = admin(); Consumer<byte[], byte[]> consumer =
                consumer(Map.of("group.id", fresh("group"), "auto.offset.reset", "earliest", "metadata.max.age.ms", "500"))) {
            create(admin, stem + "-a", 1);
            create(admin, stem + "-b", 2);
            consumer.subscribe(Pattern.compile(stem + "-.*"));
            until("both topics are assigned", () -> {
                consumer.poll(Duration.ofMillis(100));
                return consumer.assignment().size() == 3;
            });
            create(admin, stem + "-c", 1);
            until("a new topic is found", () -> {
                consumer.poll(Duration.ofMillis(100));
                return consumer.assignment().size() == 4;
            });
        }
    }
}
