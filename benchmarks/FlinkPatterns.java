import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.cep.functions.TimedOutPartialMatchHandler;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamUtils;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.RichParallelSourceFunction;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * The same patterns on Flink CEP. Reads orders from its input, one a line, and answers each with a
 * line: matches, seconds from the first event to the end of the job, processor seconds meanwhile.
 *
 * <p>An order is {@code file shape stages window parallelism mode}; the mode is {@code plain},
 * {@code chained}, where source and matching are one task, or {@code timeouts}, where partial
 * matches whose time is over are told too. A file has the number of
 * events and then, column by column, key, kind and price of each; its place is its time. It is read
 * before the job begins, so the job only makes events of arrays.
 */
public final class FlinkPatterns {
  private static final int WATERMARK_EACH = 10_000;
  private static final String[] KINDS = {"a", "b", "c", "d", "e", "x"};

  private static String held = "";
  private static long[] keys;
  private static byte[] kinds;
  private static double[] prices;
  private static volatile long began;
  private static volatile long usedBefore;
  private static final LongAdder matches = new LongAdder();

  private FlinkPatterns() {}

  /** A row of the stream. */
  public static final class Event {
    public long t;
    public long key;
    public String kind;
    public double price;
  }

  /** Takes orders until there are no more. */
  public static void main(String[] arguments) throws Exception {
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    System.out.println("ready");
    for (String line = orders.readLine(); line != null; line = orders.readLine()) {
      String[] order = line.split(" ");
      read(order[0]);
      Pattern<Event, ?> pattern = pattern(order[1], Integer.parseInt(order[2]));
      pattern = pattern.within(Duration.ofMillis(Long.parseLong(order[3])));
      System.out.println("done " + run(pattern, Integer.parseInt(order[4]), order[5]));
    }
  }

  private static void read(String file) throws Exception {
    if (file.equals(held)) {
      return;
    }
    ByteBuffer data = ByteBuffer.wrap(Files.readAllBytes(Path.of(file)));
    data.order(ByteOrder.LITTLE_ENDIAN);
    int count = (int) data.getLong();
    keys = new long[count];
    kinds = new byte[count];
    prices = new double[count];
    data.asLongBuffer().get(keys);
    data.position(data.position() + 8 * count);
    data.get(kinds);
    data.asDoubleBuffer().get(prices);
    held = file;
  }

  private static String run(Pattern<Event, ?> pattern, int parallelism, String mode)
      throws Exception {
    Configuration settings = new Configuration();
    settings.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(64));
    var flink = StreamExecutionEnvironment.createLocalEnvironment(parallelism, settings);
    flink.getConfig().enableObjectReuse();
    DataStream<Event> events = flink.addSource(new Replay());
    KeyedStream<Event, Long> keyed =
        mode.equals("chained")
            ? DataStreamUtils.reinterpretAsKeyedStream(events, event -> event.key)
            : events.keyBy(event -> event.key);
    Count count = mode.equals("timeouts") ? new CountAll() : new Count();
    CEP.pattern(keyed, pattern).inEventTime().process(count).sinkTo(new DiscardingSink<>());
    matches.reset();
    began = 0;
    flink.execute();
    double seconds = (System.nanoTime() - began) / 1e9;
    return matches.sum() + " " + seconds + " " + (used() - usedBefore) / 1e9;
  }

  private static long used() {
    var system = ManagementFactory.getOperatingSystemMXBean();
    return ((com.sun.management.OperatingSystemMXBean) system).getProcessCpuTime();
  }

  private static Pattern<Event, ?> pattern(String shape, int stages) {
    Pattern<Event, Event> pattern = Pattern.<Event>begin("a").where(is("a"));
    if (shape.equals("loop")) {
      return pattern
          .followedBy("b").where(is("b")).where(new Below(500)).oneOrMore()
          .followedBy("c").where(is("c"));
    }
    if (shape.equals("negation")) {
      return pattern.followedBy("b").where(is("b")).notFollowedBy("c").where(is("c"));
    }
    for (int stage = 1; stage < stages; stage++) {
      String name = KINDS[stage];
      pattern = shape.equals("strict") ? pattern.next(name) : pattern.followedBy(name);
      pattern = pattern.where(is(name));
    }
    return pattern;
  }

  private static SimpleCondition<Event> is(String kind) {
    return SimpleCondition.of(event -> event.kind.equals(kind));
  }

  /** Holds while the prices of the events taken for {@code b} so far are below a sum. */
  private static final class Below extends IterativeCondition<Event> {
    private final double limit;

    Below(double limit) {
      this.limit = limit;
    }

    @Override
    public boolean filter(Event event, Context<Event> run) throws Exception {
      double sum = 0;
      for (Event taken : run.getEventsForPattern("b")) {
        sum += taken.price;
      }
      return sum < limit;
    }
  }

  /** Makes events of the arrays, each task those of every so-manieth place. */
  private static final class Replay extends RichParallelSourceFunction<Event> {
    private volatile boolean on = true;

    @Override
    public void open(OpenContext context) {
      if (began == 0) {
        usedBefore = used();
        began = System.nanoTime();
      }
    }

    @Override
    public void run(SourceContext<Event> out) {
      int tasks = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
      int each = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
      Event event = new Event();
      for (int at = each, number = 1; on && at < keys.length; at += tasks, number++) {
        event.t = at;
        event.key = keys[at];
        event.kind = KINDS[kinds[at]];
        event.price = prices[at];
        synchronized (out.getCheckpointLock()) {
          out.collectWithTimestamp(event, at);
          if (number % WATERMARK_EACH == 0) {
            out.emitWatermark(new Watermark(at));
          }
        }
      }
    }

    @Override
    public void cancel() {
      on = false;
    }
  }

  /** Counts matches and hands on how many stages each has. */
  private static class Count extends PatternProcessFunction<Event, Integer> {
    @Override
    public void processMatch(
        Map<String, List<Event>> match, Context context, Collector<Integer> out) {
      matches.increment();
      out.collect(match.size());
    }
  }

  /** Hands on partial matches whose time is over as well. */
  private static final class CountAll extends Count
      implements TimedOutPartialMatchHandler<Event> {
    private static final OutputTag<Integer> TIMEOUTS = new OutputTag<>("timeouts", Types.INT);

    @Override
    public void processTimedOutMatch(Map<String, List<Event>> match, Context context) {
      context.output(TIMEOUTS, match.size());
    }
  }
}
