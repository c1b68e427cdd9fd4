#include "engine/checkpoint/conversion.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/conversion_folder.h"
#include "engine/checkpoint/foreign/huggingface/adapter.h"
#include "engine/checkpoint/foreign/huggingface/companions.h"
#include "engine/checkpoint/foreign/huggingface/model_config.h"
#include "engine/checkpoint/foreign/huggingface/writer.h"
#include "engine/checkpoint/foreign/llmc/gpt2_file.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/config/arch/tensor_list.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

TargetFormat target_of(const ConversionRequest& request, CheckpointFormat source) {
  if (request.format) {
    return *request.format;
  }
  if (request.to.extension() == ".bin") {
    return TargetFormat::kLlmC;
  }
  if (request.to.extension() == ".safetensors") {
    return TargetFormat::kF32;
  }
  return source == CheckpointFormat::kDstrain ? TargetFormat::kHuggingFace : TargetFormat::kDstrain;
}

void check_request(const ConversionRequest& request, TargetFormat target) {
  const bool is_f16 = request.dtype == DType::kF16;
  if (target == TargetFormat::kF32 && request.dtype.value_or(DType::kF32) != DType::kF32) {
    throw ConfigError(
        "--format fp32 writes fp32: leave --dtype out, or write --format huggingface");
  }
  if (is_f16 && (target == TargetFormat::kDstrain || target == TargetFormat::kLlmC)) {
    throw ConfigError(fmt::format("--dtype fp16: {} holds fp32 or bf16", describe(target)));
  }
  if (!request.merge_adapter.empty() && target == TargetFormat::kPeft) {
    throw ConfigError("--merge-adapter leaves no adapter that --format peft could write");
  }
  if (request.ranks != 1 && target != TargetFormat::kDstrain) {
    throw ConfigError(
        fmt::format("--ranks is for dstrain checkpoints; {} has none", describe(target)));
  }
  std::error_code error;
  const bool is_file = target == TargetFormat::kLlmC || target == TargetFormat::kF32;
  if (is_file && fs::exists(request.to, error)) {
    throw ConfigError(fmt::format("{}: already exists: name a new file; nothing is overwritten",
                                  request.to.string()));
  }
}

/// Checksum of the names, sizes and times of a source's files, which shows whether it has changed.
std::string state_of(const fs::path& source) {
  std::vector<fs::path> paths{source};
  if (fs::is_directory(source)) {
    paths.assign(fs::directory_iterator(source), fs::directory_iterator());
    std::sort(paths.begin(), paths.end());
  }
  std::string text;
  for (const fs::path& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
      text += fmt::format("{} {} {}.{}\n", path.filename().string(), status.st_size,
                          status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    }
  }
  return checksum_text(checksum(text));
}

/// The dtype of the whole target, for formats that have one dtype for all tensors.
DType common_dtype(const TensorSource& source) {
  std::set<DType> dtypes;
  for (const TensorSource::Entry& entry : source.entries()) {
    if (entry.state == "parameter" && !is_balancing_bias(entry.tensor)) {
      dtypes.insert(entry.dtype);
    }
  }
  return dtypes.size() == 1 ? *dtypes.begin() : DType::kF32;
}

class Conversion {
 public:
  Conversion(const ConversionRequest& request, const ConversionHooks& hooks)
      : request_(request), hooks_(hooks), files_(request.probe) {}

  ConversionSummary run() {
    const auto begin = std::chrono::steady_clock::now();
    source_ = open_weights(request_.from, request_.model);
    summary_.source_format = source_.format;
    summary_.source = source_.path;
    summary_.target_format = target_of(request_, source_.format);
    summary_.model = source_.model;
    summary_.step = source_.training.step;
    summary_.left_out = source_.tensors->left_out();
    check_request(request_, summary_.target_format);
    const bool keeps_adapters = summary_.target_format == TargetFormat::kDstrain ||
                                summary_.target_format == TargetFormat::kPeft;
    if (!request_.merge_adapter.empty() && source_.adapters.enabled()) {
      throw ConfigError(
          fmt::format("--merge-adapter: {} has adapters of its own, which are merged "
                      "into other formats than dstrain's: leave it out",
                      source_.path.string()));
    }
    if (!keeps_adapters) merge_adapters(source_, request_.base);
    if (keeps_adapters && !request_.base.empty()) {
      throw ConfigError(fmt::format("--base {}: {} takes adapters alone: leave --base out",
                                    request_.base.string(), describe(summary_.target_format)));
    }
    if (!request_.merge_adapter.empty()) merge_adapter(source_, request_.merge_adapter);
    for (const TensorSource::Entry& entry : source_.tensors->entries()) {
      const bool is_parameter = entry.state == "parameter";
      summary_.tensors += is_parameter ? 1 : 0;
      summary_.optimizer_left_out |=
          !is_parameter && summary_.target_format != TargetFormat::kDstrain;
    }
    switch (summary_.target_format) {
      case TargetFormat::kDstrain:
        to_dstrain();
        break;
      case TargetFormat::kHuggingFace:
        to_huggingface();
        break;
      case TargetFormat::kLlmC:
        to_llmc();
        break;
      case TargetFormat::kPeft:
        to_peft();
        break;
      case TargetFormat::kF32:
        to_f32();
        break;
    }
    summary_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return summary_;
  }

 private:
  void to_dstrain() {
    std::vector<CheckpointShare> shares;
    for (int rank = 0; rank < request_.ranks; ++rank) {
      shares.push_back({.rank = rank, .ranks = request_.ranks, .dtype = request_.dtype});
      summary_.bytes += share_bytes(*source_.tensors, shares.back());
    }
    ConversionFolder folder(request_.to, identity(), files_);
    Manifest manifest;
    for (const CheckpointShare& share : shares) {
      const std::string name = share_name(share.rank);
      add(folder, name, [&](const fs::path& part) {
        return write_checkpoint_share(files_, part, *source_.tensors, share, progress_);
      });
      Manifest of_share =
          manifest_of_share(folder.path() / name, *source_.tensors, share, source_.training);
      if (share.rank == 0) {
        manifest = std::move(of_share);
      } else {
        merge(manifest, std::move(of_share));
      }
    }
    const auto fault = fault_of_cover(manifest);
    check(!fault.has_value(), "not converted: {}", fault.value_or(""));
    if (source_.format == CheckpointFormat::kHuggingFace ||
        source_.format == CheckpointFormat::kDstrain) {
      add_companions(folder, find_companions(source_.path, source_.training.config));
    }
    folder.finish(std::string(kManifestName), to_text(manifest));
  }

  void to_huggingface() {
    const std::vector<HuggingFaceShard> shards = huggingface_shards(
        source_.model, *source_.tensors, request_.dtype, request_.max_shard_bytes);
    for (const HuggingFaceShard& shard : shards) {
      count(shard);
    }
    ConversionFolder folder(request_.to, identity(), files_);
    for (const HuggingFaceShard& shard : shards) {
      add(folder, shard.name, [&](const fs::path& part) {
        return write_huggingface_shard(files_, part, shard, *source_.tensors, progress_);
      });
    }
    if (shards.size() > 1) {
      folder.add_text("model.safetensors.index.json", huggingface_index(shards));
    }
    Companions companions = find_companions(source_.path, source_.training.config);
    const std::string config =
        huggingface_config(source_.model, request_.dtype.value_or(common_dtype(*source_.tensors)),
                           companions.take("config.json"));
    add_companions(folder, std::move(companions));
    folder.finish("config.json", config);
  }

  void to_llmc() {
    const DType common = common_dtype(*source_.tensors);
    const DType dtype = request_.dtype.value_or(common == DType::kBF16 ? common : DType::kF32);
    const LlmcGpt2Layout layout = llmc_gpt2_layout(source_.model, dtype);
    summary_.bytes = layout.file_bytes;
    add_file([&](const fs::path& part) {
      DurableFile file(files_, part, layout.file_bytes);
      ByteTally tally(progress_);
      const auto sink = [&](std::span<const std::byte> bytes) {
        file.write(bytes);
        tally.add(bytes);
      };
      sink(std::as_bytes(std::span(layout.header)));
      for (const ForeignTensor& tensor : layout.tensors) {
        stream_foreign(*source_.tensors, tensor, dtype, sink);
      }
      file.finish();
      return tally.of(part);
    });
  }

  void to_peft() {
    if (!source_.adapters.enabled()) {
      throw ConfigError(fmt::format("--format peft: {} has no adapters", source_.path.string()));
    }
    const HuggingFaceShard shard =
        adapter_shard(source_.model, source_.adapters, *source_.tensors, request_.dtype);
    count(shard);
    ConversionFolder folder(request_.to, identity(), files_);
    add(folder, shard.name, [&](const fs::path& part) {
      return write_huggingface_shard(files_, part, shard, *source_.tensors, progress_);
    });
    folder.finish(kAdapterConfigFile,
                  adapter_config(source_.adapters, source_.model, shard,
                                 parse_initial_weights(source_.training.config, "config")));
  }

  void to_f32() {
    const std::vector<HuggingFaceShard> shards =
        huggingface_shards(source_.model, *source_.tensors, DType::kF32, 0);
    count(shards.front());
    add_file([&](const fs::path& part) {
      return write_huggingface_shard(files_, part, shards.front(), *source_.tensors, progress_);
    });
  }

  void count(const HuggingFaceShard& shard) {
    for (const HuggingFaceTensor& tensor : shard.tensors) {
      summary_.bytes += tensor.bytes();
    }
  }

  void add(ConversionFolder& folder,
           const std::string& name,
           const std::function<WrittenFile(const fs::path&)>& write) {
    const bool was_there = folder.add(name, progress_, write);
    summary_.files_taken_up += was_there ? 1 : 0;
    summary_.files.push_back(name);
  }

  void add_file(const std::function<WrittenFile(const fs::path&)>& write) {
    const fs::path parent = request_.to.parent_path();
    if (!parent.empty()) {
      files_.make_folder(parent);
    }
    summary_.files.push_back(write_checked(files_, request_.to, progress_, write).name);
  }

  void add_companions(ConversionFolder& folder, Companions companions) {
    for (const auto& [name, content] : companions.files()) {
      folder.add_text(name, content);
      summary_.companions.push_back(name);
    }
  }

  /// A text that distinguishes this conversion from any other.
  [[nodiscard]] std::string identity() const {
    return fmt::format(
        "{}{}{} as {}, {}, state {}, {} files, shards of {}",
        fs::absolute(source_.path).lexically_normal().string(),
        request_.merge_adapter.empty()
            ? ""
            : fmt::format(" with {}, state {}",
                          fs::absolute(request_.merge_adapter).lexically_normal().string(),
                          state_of(request_.merge_adapter)),
        request_.base.empty()
            ? ""
            : fmt::format(" beside {}", fs::absolute(request_.base).lexically_normal().string()),
        describe(summary_.target_format),
        request_.dtype ? name_of(*request_.dtype) : "dtypes as they are", state_of(source_.path),
        request_.ranks, request_.max_shard_bytes);
  }

  const ConversionRequest& request_;
  const ConversionHooks& hooks_;
  DurableFiles files_;
  WeightsSource source_;
  ConversionSummary summary_;
  std::int64_t bytes_done_ = 0;
  const ByteProgress progress_ = [this](std::int64_t bytes) {
    bytes_done_ += bytes;
    hooks_.on_progress({.bytes_done = bytes_done_, .bytes_total = 2 * summary_.bytes});
    if (hooks_.stop_requested()) {
      throw ConversionStopped();
    }
  };
};

}  // namespace

std::string_view name_of(TargetFormat format) {
  switch (format) {
    case TargetFormat::kDstrain:
      return "dstrain";
    case TargetFormat::kHuggingFace:
      return "huggingface";
    case TargetFormat::kLlmC:
      return "llmc";
    case TargetFormat::kPeft:
      return "peft";
    case TargetFormat::kF32:
      return "fp32";
  }
  return "";
}

std::string_view describe(TargetFormat format) {
  switch (format) {
    case TargetFormat::kDstrain:
      return "a dstrain checkpoint";
    case TargetFormat::kHuggingFace:
      return "a Hugging Face folder";
    case TargetFormat::kLlmC:
      return "an llm.c model";
    case TargetFormat::kPeft:
      return "a folder of adapters";
    case TargetFormat::kF32:
      return "a file of fp32 weights";
  }
  return "";
}

std::optional<ConversionSummary> convert_checkpoint(const ConversionRequest& request,
                                                    const ConversionHooks& hooks) {
  try {
    return Conversion(request, hooks).run();
  } catch (const ConversionStopped&) {
    return std::nullopt;
  }
}

}  // namespace dstrain
