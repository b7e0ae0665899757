import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Kafka's own authorizer behind lines of words separated by tabs:
 *
 * <pre>
 * new  ALLOW_EVERYONE                              begins a set of ACLs, and a line of answers
 * add  TYPE PATTERN NAME PRINCIPAL HOST OP PERMISSION
 * del  (the same)
 * ask  PRINCIPAL HOST OP TYPE NAME                 answers 1 or 0
 * any  PRINCIPAL HOST OP TYPE                      answers 1 or 0: authorizeByResourceType
 * </pre>
 */
public final class Authorizer {
    private record Client(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        @Override
        public String listenerName() {
            return "default";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.SASL_SSL;
        }

        @Override
        public int requestType() {
            return 0;
        }

        @Override
        public int requestVersion() {
            return 0;
        }

        @Override
        public String clientId() {
            return "";
        }

        @Override
        public int correlationId() {
            return 0;
        }
    }

    private static StandardAuthorizer begin(String allowEveryone) {
        StandardAuthorizer made = new StandardAuthorizer();
        made.configure(Map.of("allow.everyone.if.no.acl.found", allowEveryone));
        made.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        made.completeInitialLoad();
        return made;
    }

    private static StandardAcl acl(String[] words) {
        return new StandardAcl(
                ResourceType.fromString(words[1]),
                words[3],
                PatternType.fromString(words[2]),
                words[4],
                words[5],
                AclOperation.fromString(words[6]),
                AclPermissionType.fromString(words[7]));
    }

    private static Client client(String[] words) throws Exception {
        String[] principal = words[1].split(":", 2);
        return new Client(new KafkaPrincipal(principal[0], principal[1]), InetAddress.getByName(words[2]));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        StandardAuthorizer authorizer = null;
        Map<StandardAcl, Uuid> ids = new HashMap<>();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            AuthorizationResult result;
            switch (words[0]) {
                case "new":
                    if (authorizer != null) {
                        answers.append('\n');
                    }
                    authorizer = begin(words[1]);
                    ids.clear();
                    continue;
                case "add":
                    Uuid id = Uuid.randomUuid();
                    ids.put(acl(words), id);
                    authorizer.addAcl(id, acl(words));
                    continue;
                case "del":
                    authorizer.removeAcl(ids.remove(acl(words)));
                    continue;
                case "ask":
                    ResourcePattern pattern =
                            new ResourcePattern(ResourceType.fromString(words[4]), words[5], PatternType.LITERAL);
                    Action action = new Action(AclOperation.fromString(words[3]), pattern, 1, false, false);
                    result = authorizer.authorize(client(words), List.of(action)).get(0);
                    break;
                default:
                    result = authorizer.authorizeByResourceType(
                            client(words), AclOperation.fromString(words[3]), ResourceType.fromString(words[4]));
            }
            answers.append(result == AuthorizationResult.ALLOWED ? '1' : '0');
        }
        System.out.println(answers);
    }
}
