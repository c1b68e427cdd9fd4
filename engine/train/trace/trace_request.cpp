#include "engine/train/trace/trace_request.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "engine/checkpoint/durable_files.h"

namespace dstrain {

void ask_for_trace(const std::filesystem::path& output_dir, const TraceRequest& request) {
  const nlohmann::json json = {{"steps", request.steps},
                               {"ranks", request.ranks.empty() ? "all" : to_text(request.ranks)}};
  const DurableFiles files;
  const std::filesystem::path path = output_dir / TraceRequest::kFile;
  const std::filesystem::path temporary = path.string() + ".tmp";
  files.write_file(temporary, json.dump() + "\n");
  files.rename(temporary, path);
}

std::optional<TraceRequest> take_trace_request(const std::filesystem::path& output_dir) {
  const std::filesystem::path path = output_dir / TraceRequest::kFile;
  std::ifstream in(path);
  if (!in) return std::nullopt;
  const auto json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  std::error_code ignored;  // it is asked again then, and answered again
  std::filesystem::remove(path, ignored);
  if (!json.is_object() || !json.contains("steps") || !json["steps"].is_number_integer() ||
      !json.contains("ranks") || !json["ranks"].is_string()) {
    return std::nullopt;
  }
  TraceRequest request{.steps = std::clamp<std::int64_t>(json["steps"], 1, TraceConfig::kMostSteps),
                       .ranks = {}};
  if (const std::string ranks = json["ranks"]; ranks != "all") {
    const auto spans = parse_spans(ranks);
    if (!spans) return std::nullopt;
    request.ranks = *spans;
  }
  return request;
}

}  // namespace dstrain
