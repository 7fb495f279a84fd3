import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What an application on the Java clients relies on, one check each, in one JVM. Prints a line a check:
 * its name, "ok" or "failed", and the trace. The source compiles against every client version tested.
 */
public class ClientChecks {
    public static void main(String[] args) throws Exception {
        Support.address = args[0];
        Map<String, Support.Check> checks = new LinkedHashMap<>();
        checks.put("topics", AdminChecks::topics);
        checks.put("configs", AdminChecks::configs);
        checks.put("cluster", AdminChecks::cluster);
        checks.put("codecs", DataChecks::codecs);
        checks.put("acks", DataChecks::acks);
        checks.put("sizes", DataChecks::sizes);
        checks.put("offsets", DataChecks::offsets);
        checks.put("out_of_range", DataChecks::outOfRange);
        checks.put("automatic_creation", DataChecks::automaticCreation);
        checks.put("groups", GroupChecks::groups);
        checks.put("group_admin", GroupChecks::groupAdmin);
        checks.put("static_members", GroupChecks::staticMembers);
        checks.put("pattern", GroupChecks::pattern);
        checks.put("transactions", TransactionChecks::transactions);
        checks.put("transaction_offsets", TransactionChecks::transactionOffsets);
        checks.put("fencing", TransactionChecks::fencing);
        checks.put("stable_offset", TransactionChecks::stableOffset);
        for (Map.Entry<String, Support.Check> check : checks.entrySet()) {
            try {
                check.getValue().run();
                System.out.println(check.getKey() + "\tok\t");
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                System.out.println(check.getKey() + "\tfailed\t" + trace.toString().replace("\n", "\\n"));
            }
            System.out.flush();
        }
        System.exit(0);
    }
}
