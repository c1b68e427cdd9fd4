#include "engine/checkpoint/foreign/deepspeed/deepspeed_files.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "engine/base/regular_file.h"
#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTagBytes = 255;

/// (mp rank, dp rank) → file.
using RankFiles = std::map<std::pair<int, int>, fs::path>;

/// A file name that is parsed from the front.
class Name {
 public:
  explicit Name(std::string_view text) : rest_(text) {}

  /// Removes `part` and returns true if the rest of the name begins with it.
  bool take(std::string_view part) {
    const bool here = rest_.starts_with(part);
    rest_.remove_prefix(here ? part.size() : 0);
    return here;
  }
  /// Moves the leading digits to `digits`; returns false if there are none.
  bool take_digits(std::string_view& digits) {
    const std::size_t count = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    digits = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return count > 0;
  }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

struct RanksInName {
  std::string_view dp = "0";
  std::string_view mp;
};

/// mp_rank_XX_model_states.pt
std::optional<RanksInName> model_file(std::string_view text) {
  Name name(text);
  RanksInName ranks;
  const bool matches = name.take("mp_rank_") && name.take_digits(ranks.mp) &&
                       name.take("_model_states.pt") && name.at_end();
  return matches ? std::optional(ranks) : std::nullopt;
}

/// zero_pp_rank_R_mp_rank_XX_model_states.pt, or …_optim_states.pt
std::optional<RanksInName> sharded_file(std::string_view text, std::string_view ending) {
  Name name(text);
  RanksInName ranks;
  const bool matches = name.take("zero_pp_rank_") && name.take_digits(ranks.dp) &&
                       name.take("_mp_rank_") && name.take_digits(ranks.mp) && name.take(ending) &&
                       name.at_end();
  return matches ? std::optional(ranks) : std::nullopt;
}

std::optional<RanksInName> optim_file(std::string_view text) {
  for (const std::string_view prefix : {"bf16_", "fp16_"}) {
    if (text.starts_with(prefix)) {
      text.remove_prefix(prefix.size());
      break;
    }
  }
  return sharded_file(text, "_optim_states.pt");
}

bool is_expert_file(std::string_view name) {
  return (name.starts_with("layer_") && name.find("_expert_") != std::string_view::npos &&
          name.ends_with("_model_states.pt")) ||
         (name.starts_with("expp_rank_") && name.ends_with("_optim_states.pt"));
}

int number_in(std::string_view digits, const fs::path& path) {
  int value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc()) {
    throw CheckpointError(fmt::format("{}: {} is not a rank", path.string(), digits));
  }
  return value;
}

void insert(RankFiles& files, int mp_rank, int dp_rank, const fs::path& path) {
  const auto [at, is_new] = files.emplace(std::pair(mp_rank, dp_rank), path);
  if (!is_new) {
    throw CheckpointError(
        fmt::format("{} and {} are of the same rank: files of two checkpoints are in one folder",
                    at->second.string(), path.string()));
  }
}

/// Ranks 0 … n-1 on both axes, none missing.
DeepSpeedFiles::Grid grid_of(const RankFiles& files, const fs::path& folder, const char* what) {
  int num_mp = 0;
  int num_dp = 0;
  for (const auto& [ranks, path] : files) {
    num_mp = std::max(num_mp, ranks.first + 1);
    num_dp = std::max(num_dp, ranks.second + 1);
  }
  DeepSpeedFiles::Grid grid;
  for (int mp_rank = 0; mp_rank < num_mp; ++mp_rank) {
    auto& row = grid.emplace_back();
    for (int dp_rank = 0; dp_rank < num_dp; ++dp_rank) {
      const auto found = files.find({mp_rank, dp_rank});
      if (found == files.end()) {  // before the next row: a wild rank in a name costs nothing
        throw CheckpointError(fmt::format(
            "{}: no {} file of data-parallel rank {}, model-parallel rank {}; ranks up to {} and "
            "{} have one (DeepSpeed's `latest` may name a checkpoint that was not finished)",
            folder.string(), what, dp_rank, mp_rank, num_dp - 1, num_mp - 1));
      }
      row.push_back(found->second);
    }
  }
  return grid;
}

std::optional<std::string> tag_in(const fs::path& path) {
  const FileText file = read_regular_file(path.string());
  if (file.is_missing) {
    return std::nullopt;
  }
  if (!file.why.empty()) {
    throw CheckpointError(fmt::format("{} {}", path.string(), file.why));
  }
  std::string tag = file.text.substr(0, kMaxTagBytes + 1);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) {
    tag.pop_back();
  }
  const bool is_name = !tag.empty() && tag.size() <= kMaxTagBytes && tag != "." && tag != ".." &&
                       tag.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  if (!is_name) {
    throw CheckpointError(
        fmt::format("{} does not hold the name of a folder beside it", path.string()));
  }
  return tag;
}

bool is_step_folder(const fs::path& folder) {
  return std::any_of(fs::directory_iterator(folder), fs::directory_iterator(), [](const auto& e) {
    return e.path().filename().string().ends_with("_model_states.pt");
  });
}

fs::path step_folder(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw CheckpointError(fmt::format("{} is not a folder", folder.string()));
  }
  if (is_step_folder(folder)) {
    return folder;
  }
  for (const char* name : {"latest", "latest_universal"}) {
    if (const auto tag = tag_in(folder / name)) {
      if (!fs::is_directory(folder / *tag) || !is_step_folder(folder / *tag)) {
        throw CheckpointError(fmt::format("{} names {}, which holds no *_model_states.pt",
                                          (folder / name).string(), (folder / *tag).string()));
      }
      return folder / *tag;
    }
  }
  throw CheckpointError(
      fmt::format("{} holds no DeepSpeed checkpoint: expected a file \"latest\" or "
                  "*_model_states.pt files",
                  folder.string()));
}

[[noreturn]] void refuse_experts(const fs::path& path) {
  throw CheckpointError(
      fmt::format("{} belongs to a mixture of experts, which is not read; expected a dense model",
                  path.string()));
}

}  // namespace

DeepSpeedFiles find_deepspeed_files(const fs::path& given) try {
  DeepSpeedFiles files{.folder = step_folder(given)};
  RankFiles whole;
  RankFiles sharded;
  RankFiles optim;
  for (const auto& entry : fs::directory_iterator(files.folder)) {
    const std::string name = entry.path().filename().string();
    const auto add = [&](RankFiles& to, const RanksInName& ranks) {
      insert(to, number_in(ranks.mp, entry.path()), number_in(ranks.dp, entry.path()),
             entry.path());
    };
    if (const auto model = model_file(name)) {
      add(whole, *model);
    } else if (const auto shard = sharded_file(name, "_model_states.pt")) {
      add(sharded, *shard);
    } else if (const auto states = optim_file(name)) {
      add(optim, *states);
    } else if (is_expert_file(name)) {
      refuse_experts(entry.path());
    }
  }
  if (whole.empty() == sharded.empty()) {
    throw CheckpointError(
        fmt::format("{} {} mp_rank_00_model_states.pt (stages 0 to 2) {} "
                    "zero_pp_rank_0_mp_rank_00_model_states.pt (stage 3), expected one of them",
                    files.folder.string(), whole.empty() ? "has neither" : "has both",
                    whole.empty() ? "nor" : "and"));
  }
  files.is_universal = fs::is_directory(files.folder / "zero");
  files.model_states = grid_of(whole.empty() ? sharded : whole, files.folder, "model_states");
  if (!files.is_universal) {
    files.optim_states = grid_of(optim, files.folder, "optim_states");
  }
  const bool has_optim = !files.optim_states.empty();
  const bool needs_optim = !sharded.empty() && !files.is_universal;
  const bool fits =
      !has_optim ||
      (files.optim_states.size() == files.model_states.size() &&
       (whole.empty() ? files.optim_states[0].size() == files.model_states[0].size() : true));
  if (!fits || (needs_optim && !has_optim)) {
    throw CheckpointError(fmt::format(
        "{}: {} × {} model_states files (model-parallel × data-parallel ranks), but {} × {} "
        "optim_states files",
        files.folder.string(), files.model_states.size(), files.model_states[0].size(),
        files.optim_states.size(), has_optim ? files.optim_states[0].size() : 0));
  }
  return files;
} catch (const fs::filesystem_error& error) {
  throw CheckpointError(fmt::format("cannot look into {}: {}", given.string(), error.what()));
}

}  // namespace dstrain
