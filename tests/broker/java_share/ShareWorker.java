import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/**
 * The share consumer and the administration of share groups in Apache Kafka's own clients.
 *
 *   work ADDRESS GROUP TOPIC MODE ACKNOWLEDGE  prints each value with its delivery count until nothing comes for 2 s
 *   admin ADDRESS GROUP TOPIC                  prints what the admin client is told
 */
public class ShareWorker {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "work" -> work(args[1], args[2], args[3], args[4], args[5]);
            case "admin" -> administer(args[1], args[2], args[3]);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static void work(String address, String group, String topic, String mode, String kind) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", mode);
        settings.put("max.poll.records", "20");
        try (ShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.setAcknowledgementCommitCallback((offsets, failure) -> {
                if (failure != null) {
                    System.out.println("failed " + failure);
                }
            });
            consumer.subscribe(List.of(topic));
            System.out.println("ready");
            System.out.flush();
            Set<String> renewed = new HashSet<>();
            long quiet = System.currentTimeMillis() + 10_000;
            while (System.currentTimeMillis() < quiet) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    String value = new String(record.value(), StandardCharsets.UTF_8);
                    System.out.println(value + " " + record.deliveryCount().map(String::valueOf).orElse("?"));
                    quiet = System.currentTimeMillis() + 2_000;
                    if (kind.equals("renew")) {
                        // A renewed record is handed out by the next poll again, with the same delivery count.
                        consumer.acknowledge(record, renewed.add(value) ? AcknowledgeType.RENEW : AcknowledgeType.ACCEPT);
                    } else if (mode.equals("explicit")) {
                        consumer.acknowledge(record, AcknowledgeType.valueOf(kind.toUpperCase()));
                    }
                }
                for (Map.Entry<TopicIdPartition, Optional<KafkaException>> done
                        : consumer.commitSync(Duration.ofSeconds(10)).entrySet()) {
                    done.getValue().ifPresent(failure -> System.out.println("failed " + failure));
                }
            }
        }
    }

    private static void administer(String address, String group, String topic) throws Exception {
        TopicPartition first = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            ConfigEntry entry = new ConfigEntry("share.delivery.count.limit", "7");
            admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
            Config config = admin.describeConfigs(Set.of(resource)).all().get().get(resource);
            System.out.println("limit " + config.get("share.delivery.count.limit").value());
            GroupListing listing = admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE))).all().get()
                .stream().filter(one -> one.groupId().equals(group)).findFirst().orElseThrow();
            System.out.println("listed " + listing.type().get() + " " + listing.groupState().get());
            ShareGroupDescription described = admin.describeShareGroups(Set.of(group)).all().get().get(group);
            System.out.println("described " + described.groupState() + " " + described.members().size());
            System.out.println("offset " + offset(admin, group, first));
            admin.alterShareGroupOffsets(group, Map.of(first, 3L)).all().get();
            System.out.println("altered " + offset(admin, group, first));
            admin.deleteShareGroupOffsets(group, Set.of(topic)).all().get();
            System.out.println("deleted " + offset(admin, group, first));
            admin.deleteShareGroups(Collections.singleton(group)).all().get();
            boolean there = admin.listGroups().all().get().stream().anyMatch(one -> one.groupId().equals(group));
            System.out.println("there " + there);
        }
    }

    private static String offset(Admin admin, String group, TopicPartition partition) throws Exception {
        ListShareGroupOffsetsSpec spec = new ListShareGroupOffsetsSpec().topicPartitions(List.of(partition));
        SharePartitionOffsetInfo found =
            admin.listShareGroupOffsets(Map.of(group, spec)).partitionsToOffsetInfo(group).get().get(partition);
        return found == null ? "none" : found.startOffset() + " " + found.lag().map(String::valueOf).orElse("?");
    }
}
