import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** Topics, configs and the cluster, as the admin client sees them. */
final class AdminChecks extends Support {
    static void topics() throws Exception {
        try (Admin admin = admin()) {
            String name = fresh("topics");
            CreateTopicsResult created =
                admin.createTopics(List.of(new NewTopic(name, 3, (short) 1).configs(Map.of("retention.ms", "86400000"))));
            created.all().get();
            equal(3, created.numPartitions(name).get(), "partitions as answered");
            equal(1, created.replicationFactor(name).get(), "replicas as answered");
            Uuid id = created.topicId(name).get();
            raises(TopicExistsException.class, () -> create(admin, name, 1));
            raises(InvalidReplicationFactorException.class,
                () -> get(admin.createTopics(List.of(new NewTopic(fresh("x"), 1, (short) 2))).all()));
            raises(InvalidPartitionsException.class,
                () -> get(admin.createTopics(List.of(new NewTopic(fresh("x"), 0, (short) 1))).all()));
            raises(InvalidTopicException.class,
                () -> get(admin.createTopics(List.of(new NewTopic("no spaces", 1, (short) 1))).all()));
            String unmade = fresh("unmade");
            get(admin.createTopics(List.of(new NewTopic(unmade, 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all());
            String defaults = fresh("defaults");
            get(admin.createTopics(List.of(new NewTopic(defaults, Optional.empty(), Optional.empty()))).all());

            Set<String> listed = get(admin.listTopics().names());
            check(listed.contains(name) && listed.contains(defaults), "listed " + listed);
            check(!listed.contains(unmade), "a validated topic was made");
            TopicDescription described = get(admin.describeTopics(List.of(name)).allTopicNames()).get(name);
            equal(3, described.partitions().size(), "partitions");
            equal(id, described.topicId(), "id");
            for (TopicPartitionInfo partition : described.partitions()) {
                equal(1, partition.isr().size(), "in-sync replicas");
                equal(partition.leader(), partition.replicas().get(0), "leader");
            }
            TopicDescription byId = get(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id);
            equal(name, byId.name(), "name by id");

            get(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(5))).all());
            until("there are five partitions", () ->
                get(admin.describeTopics(List.of(name)).allTopicNames()).get(name).partitions().size() == 5);
            raises(InvalidPartitionsException.class, () -> get(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(4))).all()));

            get(admin.deleteTopics(List.of(name)).all());
            get(admin.deleteTopics(TopicCollection.ofTopicNames(List.of(defaults))).all());
            until("the topic is gone", () -> {
                try {
                    get(admin.describeTopics(List.of(name)).allTopicNames());
                    return false;
                } catch (UnknownTopicOrPartitionException gone) {
                    return true;
                }
            });
            raises(UnknownTopicOrPartitionException.class, () -> get(admin.deleteTopics(List.of(name)).all()));
            create(admin, name, 1);
            check(!id.equals(get(admin.describeTopics(List.of(name)).allTopicNames()).get(name).topicId()), "a new topic has the old id");
        }
    }

    static void configs() throws Exception {
        try (Admin admin = admin()) {
            String name = fresh("configs");
            get(admin.createTopics(List.of(new NewTopic(name, 1, (short) 1).configs(Map.of("retention.ms", "1234567")))).all());
            ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
            Config config = get(admin.describeConfigs(List.of(topic)).all()).get(topic);
            ConfigEntry retention = config.get("retention.ms");
            equal("1234567", retention.value(), "retention.ms");
            equal(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, retention.source(), "source of an override");
            check(!retention.isDefault() && !retention.isSensitive() && !retention.isReadOnly(), "flags " + retention);
            ConfigEntry segment = config.get("segment.bytes");
            equal("1073741824", segment.value(), "segment.bytes");
            check(segment.isDefault(), "a default is marked so: " + segment);
            equal(ConfigEntry.ConfigType.INT, segment.type(), "type of segment.bytes");
            equal("delete", config.get("cleanup.policy").value(), "cleanup.policy");

            alter(admin, topic, "retention.ms", "7654321", AlterConfigOp.OpType.SET);
            alter(admin, topic, "segment.bytes", "2097152", AlterConfigOp.OpType.SET);
            config = get(admin.describeConfigs(List.of(topic)).all()).get(topic);
            equal("7654321", config.get("retention.ms").value(), "altered");
            equal("2097152", config.get("segment.bytes").value(), "altered");
            alter(admin, topic, "retention.ms", "", AlterConfigOp.OpType.DELETE);
            config = get(admin.describeConfigs(List.of(topic), new DescribeConfigsOptions().includeSynonyms(true)).all()).get(topic);
            equal("604800000", config.get("retention.ms").value(), "back to the default");
            raises(InvalidConfigurationException.class, () -> alter(admin, topic, "no.such.setting", "1", AlterConfigOp.OpType.SET));
            raises(InvalidConfigurationException.class, () -> alter(admin, topic, "segment.bytes", "many", AlterConfigOp.OpType.SET));
        }
    }

    static void cluster() throws Exception {
        try (Admin admin = admin()) {
            DescribeClusterResult result = admin.describeCluster();
            Collection<Node> nodes = get(result.nodes());
            equal(1, nodes.size(), "nodes");
            Node node = nodes.iterator().next();
            equal(address, node.host() + ":" + node.port(), "advertised address");
            equal(node.id(), get(result.controller()).id(), "controller");
            check(!get(result.clusterId()).isEmpty(), "cluster id");

            String name = fresh("cluster");
            create(admin, name, 2);
            try (Producer<byte[], byte[]> producer = producer(Map.of())) {
                producer.send(new ProducerRecord<>(name, 0, null, new byte[1000])).get();
            }
            TopicPartition first = new TopicPartition(name, 0);
            Map<String, LogDirDescription> folders = get(admin.describeLogDirs(List.of(node.id())).allDescriptions()).get(node.id());
            ReplicaInfo replica = folders.values().stream().filter(folder -> folder.replicaInfos().containsKey(first))
                .findFirst().get().replicaInfos().get(first);
            check(replica.size() >= 1000, "size on disk: " + replica.size());

            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(node.id()));
            Config config = get(admin.describeConfigs(List.of(broker)).all()).get(broker);
            check(config.get("num.partitions") != null, "num.partitions is described");

            Map<TopicPartition, Optional<Throwable>> elections = get(admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions());
            check(elections.get(first).isPresent() && elections.get(first).get() instanceof ElectionNotNeededException, "election " + elections);
            check(get(admin.listPartitionReassignments().reassignments()).isEmpty(), "reassignments");
            QuorumInfo quorum = get(admin.describeMetadataQuorum().quorumInfo());
            equal(node.id(), quorum.leaderId(), "leader of the quorum");
            check(get(admin.describeFeatures().featureMetadata()).supportedFeatures() != null, "features");
        }
    }
}
