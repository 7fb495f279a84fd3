import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.ShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Share consumers that acknowledge each record by itself; the client sends what was acknowledged with its next fetch. */
final class ShareLoad {
    /** Counts what the broker confirmed in `seconds`, after every consumer had its first record and `warmup` is over. */
    static String share(Map<String, String> args) throws Exception {
        int consumers = Integer.parseInt(args.get("consumers"));
        double warmup = Double.parseDouble(args.getOrDefault("warmup", "1"));
        double seconds = Double.parseDouble(args.get("seconds"));
        AtomicLong confirmed = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        AtomicBoolean stop = new AtomicBoolean();
        CountDownLatch started = new CountDownLatch(consumers);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < consumers; i++) {
            Thread thread = new Thread(() -> work(args, started, confirmed, failed, stop));
            thread.start();
            threads.add(thread);
        }
        try {
            if (!started.await(60, TimeUnit.SECONDS)) {
                throw new IllegalStateException(started.getCount() + " consumers were given nothing");
            }
            Thread.sleep((long) (warmup * 1000));
            long before = confirmed.get();
            long began = System.nanoTime();
            Thread.sleep((long) (seconds * 1000));
            long records = confirmed.get() - before;
            double took = (System.nanoTime() - began) / 1e9;
            return "records=" + records + " seconds=" + took + " failed=" + failed.get() + " all=" + confirmed.get();
        } finally {
            stop.set(true);
            for (Thread thread : threads) {
                thread.join();
            }
        }
    }

    private static void work(Map<String, String> args, CountDownLatch started, AtomicLong confirmed, AtomicLong failed, AtomicBoolean stop) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args.get("bootstrap"));
        settings.put("group.id", args.get("group"));
        settings.put("share.acknowledgement.mode", "explicit");
        try (ShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.setAcknowledgementCommitCallback((offsets, failure) -> {
                long count = offsets.values().stream().mapToLong(Set::size).sum();
                (failure == null ? confirmed : failed).addAndGet(count);
            });
            consumer.subscribe(List.of(args.get("topic")));
            boolean first = true;
            while (!stop.get()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    if (first) {
                        started.countDown();
                        first = false;
                    }
                }
            }
        }
    }
}
