#include "engine/train/trace/trace_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <libdeflate.h>
#include <nlohmann/json.hpp>

#include "engine/base/fnv_hash.h"
#include "engine/base/storage_error.h"
#include "engine/checkpoint/durable_files.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

std::string json_text(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The same number at both ends of a message, and at no other's. Below 2^53, which is how far
/// JSON's readers count.
std::uint64_t id_of_message(std::string_view group, int from, int to, std::int64_t number) {
  return fnv_hash<std::uint64_t>(fmt::format("{}/{}/{}/{}", group, from, to, number)) >> 11U;
}

/// Threads' numbers in a file. That of the thread that computes is its process's, by which Perfetto
/// knows a main thread; no other may be like any rank's.
int thread_id(int rank, int thread) {
  constexpr int kOthers = 1'000'000;
  return thread == 0 ? rank : kOthers + thread;
}

class EventLines {
 public:
  EventLines(const RankTrace& trace, std::string& text) : trace_(trace), text_(text) {}

  void name_process() {
    std::string name = fmt::format("rank {}", trace_.rank);
    if (!trace_.place.empty()) name += fmt::format(" ({})", trace_.place);
    add_fact("process_name", trace_.rank, fmt::format(R"("name":{})", json_text(name)));
    add_fact("process_labels", trace_.rank,
             fmt::format(R"("labels":{})", json_text(trace_.host + ", " + trace_.device)));
    add_fact("process_sort_index", trace_.rank, fmt::format(R"("sort_index":{})", trace_.rank));
  }
  void name_thread(int thread, const std::string& name) {
    add_fact("thread_name", thread_id(trace_.rank, thread),
             fmt::format(R"("name":{})", json_text(name)));
    add_fact("thread_sort_index", thread_id(trace_.rank, thread),
             fmt::format(R"("sort_index":{})", thread));
  }

  /// `is_within` says that it happened within another operation, which has its time already.
  void add(int thread, const TraceEvent& event, bool is_within) {
    switch (event.kind) {
      case TraceKind::kAction:
        add_span(thread, event, event.name, "user_annotation", numbered(event));
        break;
      case TraceKind::kOperation:
        add_span(thread, event, operation_name(event.name), is_within ? "cpu_op" : "kernel",
                 is_within ? "" : stream(thread) + work(event));
        break;
      case TraceKind::kKernel:
        add_span(thread, event, event.name, "kernel",
                 stream(thread) + (event.bytes == TraceEvent::kNone
                                       ? std::string()
                                       : fmt::format(R"(,"bytes":{})", event.bytes)));
        break;
      case TraceKind::kCollective:
        add_span(thread, event, event.name, "kernel", stream(thread) + "," + collective(event));
        break;
      case TraceKind::kWait:
        add_span(thread, event, event.name, "wait", "");
        break;
      case TraceKind::kSent:
        add_message(thread, event, 's', trace_.rank, event.peer);
        break;
      case TraceKind::kReceived:
        add_message(thread, event, 'f', event.peer, trace_.rank);
        break;
    }
  }

 private:
  void add_fact(const char* kind, int thread, const std::string& args) {
    text_ += fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{{}}}}},)"
                         "\n",
                         kind, trace_.rank, thread, args);
  }

  void add_span(int thread,
                const TraceEvent& event,
                std::string_view name,
                const char* category,
                const std::string& args) {
    text_ += fmt::format(
        R"({{"ph":"X","cat":"{}","name":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}},)"
        "\n",
        category, json_text(name), trace_.rank, thread_id(trace_.rank, thread),
        microseconds_of(trace_, event.begin_ns),
        microseconds_of(trace_, event.end_ns) - microseconds_of(trace_, event.begin_ns), args);
  }

  void add_message(int thread, const TraceEvent& event, char end, int from, int to) {
    text_ += fmt::format(
        R"({{"ph":"{}",{}"cat":"message","name":"message","id":{},"pid":{},"tid":{},"ts":{:.3f},)"
        R"("args":{{"from":{},"to":{},"bytes":{},"group":{}}}}},)"
        "\n",
        end, end == 'f' ? R"("bp":"e",)" : "", id_of_message(event.group, from, to, event.number),
        trace_.rank, thread_id(trace_.rank, thread), microseconds_of(trace_, event.begin_ns), from,
        to, event.bytes, json_text(event.group));
  }

  static std::string numbered(const TraceEvent& event) {
    return event.number == TraceEvent::kNone ? "" : fmt::format(R"("number":{})", event.number);
  }
  static std::string stream(int thread) { return fmt::format(R"("stream":{})", thread); }
  /// The arguments that describe an operation's work; empty where it is not known.
  static std::string work(const TraceEvent& event) {
    if (event.flops == TraceEvent::kNone) return "";
    std::string text = fmt::format(R"(,"flops":{},"bytes":{})", event.flops, event.bytes);
    if (!event.sizes.empty()) text += fmt::format(R"(,"sizes":{})", json_text(event.sizes));
    return text;
  }
  static std::string collective(const TraceEvent& event) {
    const double seconds =
        static_cast<double>(std::max<std::int64_t>(event.end_ns - event.begin_ns, 1)) * 1e-9;
    const double rate = static_cast<double>(event.bytes) / seconds * 1e-9;
    return fmt::format(
        R"("bytes":{},"group":{},"ranks":{},"for":{},"GB/s":{:.4f},"bus GB/s":{:.4f})", event.bytes,
        json_text(event.group), event.ranks, json_text(event.purpose), rate,
        rate * bus_share(event.name, event.ranks));
  }

  const RankTrace& trace_;
  std::string& text_;
};

/// The line before the events. Holistic Trace Analysis looks for a space behind "rank":.
std::string header(int rank, int world_size, const ClockReading& clock, const NumberSpan& steps) {
  return fmt::format(
      R"({{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":{},"steps":"{}",)"
      R"("distributedInfo":{{"rank": {},"world_size":{}}},)"
      R"("clock":{{"offset_ns":{},"uncertainty_ns":{}}},"traceEvents":[)"
      "\n",
      clock.zero_utc_ns, to_text({steps}), rank, world_size, clock.offset_ns, clock.uncertainty_ns);
}

/// Ends the events, the last of which has a comma and a line end behind it.
void close(std::string& text) {
  if (text.ends_with(",\n")) text.erase(text.size() - 2, 1);
  text += "]}\n";
}

std::string packed(const std::string& text) {
  constexpr int kLevel = 4;  // twice as fast as the library's usual 6, and a tenth larger
  const std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)> compressor(
      libdeflate_alloc_compressor(kLevel), &libdeflate_free_compressor);
  if (compressor == nullptr) throw std::bad_alloc();
  std::string out(libdeflate_gzip_compress_bound(compressor.get(), text.size()), '\0');
  out.resize(
      libdeflate_gzip_compress(compressor.get(), text.data(), text.size(), out.data(), out.size()));
  return out;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) throw StorageError(fmt::format("cannot read {}", path.string()));
  return content;
}

std::string unpacked(const std::filesystem::path& path) {
  constexpr std::size_t kMost = std::size_t{1} << 32U;
  const std::string content = read_file(path);
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)>
      decompressor(libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  if (decompressor == nullptr) throw std::bad_alloc();
  for (std::size_t room = content.size() * 16 + 4096; room < kMost; room *= 4) {
    std::string text(room, '\0');
    std::size_t made = 0;
    const auto result = libdeflate_gzip_decompress(decompressor.get(), content.data(),
                                                   content.size(), text.data(), room, &made);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE) continue;
    if (result != LIBDEFLATE_SUCCESS) break;
    text.resize(made);
    return text;
  }
  throw StorageError(
      fmt::format("{} is damaged: it is not the gzip file of a rank's trace", path.string()));
}

/// Writes a file that has its name once it is whole.
void write_whole(const std::filesystem::path& path, const std::string& content) {
  const DurableFiles files;
  const std::filesystem::path temporary = path.string() + ".tmp";
  files.make_folder(path.parent_path());
  files.write_file(temporary, content);
  files.rename(temporary, path);
}

}  // namespace

double microseconds_of(const RankTrace& trace, std::int64_t at_ns) {
  const double window = static_cast<double>(trace.last.at_ns - trace.first.at_ns);
  const double share = window > 0.0 ? static_cast<double>(at_ns - trace.first.at_ns) / window : 0.0;
  const auto change = static_cast<double>(trace.last.offset_ns - trace.first.offset_ns);
  // Whole nanoseconds first: steady clocks are too large for a double's digits.
  const std::int64_t since = at_ns - trace.first.offset_ns - trace.first.zero_ns;
  return (static_cast<double>(since) - share * change) * 1e-3;
}

double bus_share(std::string_view op, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (op == "all_reduce") return 2.0 * others;
  if (op == "all_gather" || op == "reduce_scatter") return others;
  return 1.0;
}

std::string_view operation_name(std::string_view function) {
  function = function.substr(0, function.find('('));
  const std::size_t at = function.find_last_of(": ");
  return at == std::string_view::npos ? function : function.substr(at + 1);
}

std::string trace_text(const RankTrace& trace) {
  std::string text = header(trace.rank, trace.world_size, trace.first, trace.steps);
  EventLines lines(trace, text);
  lines.name_process();
  int thread = -1;
  for (const TraceLog::Track& track : trace.tracks) {
    if (track.events.empty()) continue;
    lines.name_thread(++thread, track.thread);
    // By beginning, so that an operation comes before what it consists of.
    std::vector<const TraceEvent*> events;
    events.reserve(track.events.size());
    for (const TraceEvent& event : track.events) {
      events.push_back(&event);
    }
    std::stable_sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) {
      return std::pair(a->begin_ns, -a->end_ns) < std::pair(b->begin_ns, -b->end_ns);
    });
    std::int64_t operation_end = 0;
    for (const TraceEvent* const event : events) {
      const bool is_operation = event->kind == TraceKind::kOperation;
      const bool is_within = is_operation && event->end_ns <= operation_end;
      if (is_operation) operation_end = std::max(operation_end, event->end_ns);
      lines.add(thread, *event, is_within);
    }
  }
  close(text);
  return text;
}

std::filesystem::path trace_folder(const std::filesystem::path& output_dir,
                                   const NumberSpan& steps) {
  return output_dir / "traces" / fmt::format("steps-{}", to_text({steps}));
}

std::string rank_file_name(int rank) {
  return fmt::format("rank-{:05}.json.gz", rank);
}

void write_rank_trace(const std::filesystem::path& folder, const RankTrace& trace) {
  write_whole(folder / rank_file_name(trace.rank), packed(trace_text(trace)));
}

void write_trace_index(const std::filesystem::path& folder, const TraceIndex& index) {
  const Json json = {{"first_step", index.steps.first},
                     {"last_step", index.steps.last},
                     {"world_size", index.world_size},
                     {"ranks", index.ranks}};
  write_whole(folder / kTraceIndex, json.dump() + "\n");
}

TraceIndex read_trace_index(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kTraceIndex;
  const Json json = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  try {
    return {.steps = {json.at("first_step"), json.at("last_step")},
            .ranks = json.at("ranks"),
            .world_size = json.at("world_size")};
  } catch (const Json::exception&) {
    throw StorageError(
        fmt::format("{} does not say which steps and ranks were traced", path.string()));
  }
}

std::vector<std::string> read_rank_events(const std::filesystem::path& file) {
  const std::string text = unpacked(file);
  std::vector<std::string> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.ends_with(',')) line.remove_suffix(1);
    if (line.starts_with(R"({"ph")")) events.emplace_back(line);
    at = end + 1;
  }
  return events;
}

void join_rank_traces(const std::filesystem::path& folder,
                      const TraceIndex& index,
                      const std::filesystem::path& output) {
  std::string text = header(0, index.world_size, {}, index.steps);
  for (const int rank : index.ranks) {
    for (const std::string& event : read_rank_events(folder / rank_file_name(rank))) {
      text += event;
      text += ",\n";
    }
  }
  close(text);
  write_whole(output, output.extension() == ".gz" ? packed(text) : text);
}

}  // namespace dstrain
