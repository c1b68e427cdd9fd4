#include "launcher/hosts/environment.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/regular_file.h"

namespace dstrain::launcher {
namespace {

// The first five are DeepSpeed's; the rest is what users miss with it.
constexpr std::array<std::string_view, 16> kPrefixes = {
    "NCCL",  "PYTHON",  "MLFLOW",   "MV2",   "UCX",    "OMP_", "KMP_", "MKL_",
    "DNNL_", "ONEDNN_", "DSTRAIN_", "CUDA_", "WANDB_", "HF_",  "FI_",  "SPDLOG_"};
// Variables of one rank or one machine, which are not passed on: the launcher shares devices and
// cores out itself.
constexpr std::array<std::string_view, 13> kNever = {
    "CUDA_VISIBLE_DEVICES", "OMP_PROC_BIND",   "OMP_PLACES",           "KMP_AFFINITY",
    "OMP_NUM_THREADS",      "DSTRAIN_TOKEN",   "DSTRAIN_AGENT_SECRET", "DSTRAIN_STATUS_FD",
    "DSTRAIN_LIFELINE",     "DSTRAIN_THREADS", "DSTRAIN_MACHINE",      "DSTRAIN_GPU",
    "DSTRAIN_RANKS_ON_GPU"};

bool is_name(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  };
  return !text.empty() && is_letter(text.front()) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string_view without_quotes(std::string_view value) {
  const bool quoted = value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
                      value.front() == value.back();
  return quoted ? value.substr(1, value.size() - 2) : value;
}

/// Sets a variable, replacing an earlier value.
void set(Variables& variables, std::string_view name, std::string_view value) {
  std::erase_if(variables, [&](const auto& known) { return known.first == name; });
  variables.emplace_back(name, value);
}

/// Returns the names that the file sets.
std::vector<std::string> read_file(const std::string& path, Variables& variables) {
  const FileText file = read_regular_file(path, kMostHandWrittenBytes);
  if (!file.why.empty()) throw UsageError(fmt::format("{}: {}", path, file.why));
  std::istringstream lines(file.text);
  std::vector<std::string> names;
  std::string text;
  for (int number = 1; std::getline(lines, text); ++number) {
    const std::string_view line = trimmed(text);
    if (line.empty() || line.starts_with('#')) continue;
    const std::size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    if (equals == std::string_view::npos || !is_name(name)) {
      throw UsageError(fmt::format("{}:{}: expected NAME=VALUE, found \"{}\"{}", path, number, line,
                                   name.starts_with("export ") ? "; leave out \"export\"" : ""));
    }
    set(variables, name, without_quotes(trimmed(line.substr(equals + 1))));
    names.emplace_back(name);
  }
  return names;
}

/// A file that nobody named changes what ranks do: it has to be the user's own. Root's files are
/// trusted anyway.
void require_own(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) {
    throw UsageError(fmt::format("{}: {}", path, std::generic_category().message(errno)));
  }
  const std::string fix =
      "; remove it, run elsewhere, or name it with --env-file once you have read it";
  if (facts.st_uid != geteuid() && facts.st_uid != 0) {
    throw UsageError(
        fmt::format("{}: belongs to another user (uid {}), who could set what your "
                    "ranks execute{}",
                    path, facts.st_uid, fix));
  }
  if ((facts.st_mode & S_IWOTH) != 0) {
    throw UsageError(fmt::format("{}: every user may write to it: chmod o-w {}", path, path));
  }
}

}  // namespace

bool is_passed(std::string_view name) {
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); }) &&
         std::find(kNever.begin(), kNever.end(), name) == kNever.end();
}

Variables passed_variables(const Variables& own) {
  Variables passed;
  std::copy_if(own.begin(), own.end(), std::back_inserter(passed),
               [](const auto& variable) { return is_passed(variable.first); });
  return passed;
}

Variables asked_variables(const EnvironmentFlags& flags,
                          const VariableLookup& own,
                          const OnFoundFile& on_found) {
  Variables variables;
  const std::filesystem::path file_name = own("DS_ENV_FILE").value_or(".deepspeed_env");
  for (const std::filesystem::path& folder :
       {std::filesystem::path(own("HOME").value_or(".")), std::filesystem::path(".")}) {
    const std::filesystem::path path = folder / file_name;  // an absolute name stands alone
    std::error_code unreadable;
    if (!std::filesystem::exists(path, unreadable)) continue;
    require_own(path);
    on_found(path, read_file(path, variables));
  }
  for (const std::string& path : flags.files)
    read_file(path, variables);
  for (const std::string& text : flags.assignments) {
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (!is_name(name)) {
      throw UsageError(fmt::format("--env {}: expected NAME or NAME=VALUE", text));
    }
    if (equals != std::string::npos) {
      set(variables, name, std::string_view(text).substr(equals + 1));
      continue;
    }
    const auto value = own(name);
    if (!value) {
      throw UsageError(fmt::format(
          "--env {}: it is not set here; set it, or give its value: --env {}=VALUE", name, name));
    }
    set(variables, name, *value);
  }
  return variables;
}

Variables own_variables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace dstrain::launcher
