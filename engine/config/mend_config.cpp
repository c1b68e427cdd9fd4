#include "engine/config/mend_config.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "engine/config/config_keys.h"
#include "engine/config/config_overrides.h"
#include "engine/config/edit_text.h"
#include "engine/config/model_config_file.h"

namespace dstrain {
namespace {

std::string outcome_of(const ConfigEdit& edit) {
  switch (edit.kind) {
    case ConfigEdit::Kind::kSet:
      return fmt::format("{} is now {}", edit.path, edit.value);
    case ConfigEdit::Kind::kRename:
      return fmt::format("{} is now {}", edit.path, edit.value);
    case ConfigEdit::Kind::kRemove:
      return fmt::format("{} is left out", edit.path);
    case ConfigEdit::Kind::kRemoveSecond:
      return fmt::format("the second {} is left out", edit.path);
  }
  return "";
}

class Mender {
 public:
  Mender(const std::string& text,
         const std::string& file,
         LoadOptions options,
         const ResolveConfig& resolve)
      : file_(file), options_(std::move(options)), resolve_(resolve) {
    mended_.text = text;
    put_overrides();
  }

  MendedConfig mend() {
    const std::vector<ConfigProblem> first = problems();
    mended_.left = first;
    // A mend may bring problems to light that could not be judged before.
    for (bool changed = true; changed && !mended_.left.empty();) {
      changed = false;
      for (const ConfigProblem& problem : mended_.left) {
        changed = apply(problem) || changed;
      }
      mended_.left = problems();
    }
    for (ConfigProblem& problem : mended_.left) {
      restore_place(problem, first);
    }
    return std::move(mended_);
  }

 private:
  /// The text must give the run that the flags ask for.
  void put_overrides() {
    for (const std::string& text : std::exchange(options_.overrides, {})) {
      const ConfigEdit edit = edit_of_override(text);
      if (const auto changed = edit_text(mended_.text, edit, "--set")) {
        mended_.text = *changed;
        mended_.changes.push_back("--set: " + outcome_of(edit));
      } else if (edit.kind == ConfigEdit::Kind::kSet) {
        throw_config_error(kOverridePrefix + text, edit.path,
                           "cannot be placed in the text of the config: write it there by hand");
      }
    }
  }

  [[nodiscard]] std::vector<ConfigProblem> problems() const {
    ConfigProblems problems;
    problems.attempt([&] {
      LoadedConfig loaded = load_config_tree(
          config_tree_of(mended_.text, file_, options_, problems), options_, problems);
      resolve_(loaded, problems);
    });
    return problems.in_order(file_);
  }

  /// Returns false if the problem stays: there is no mend for it, or the mend has not helped.
  bool apply(const ConfigProblem& problem) {
    if (problem.mend.empty() || mended_.changes.size() > kMostChanges) return false;
    std::string text = mended_.text;
    for (const ConfigEdit& edit : problem.mend) {
      if (!tried_.insert(fmt::format("{} {}", static_cast<int>(edit.kind), edit.path)).second) {
        return false;
      }
      const auto changed = edit_text(text, edit, problem.message);
      if (!changed) return false;
      text = *changed;
    }
    mended_.text = text;
    for (const ConfigEdit& edit : problem.mend) {
      mended_.changes.push_back(
          fmt::format("{}: {}: {}", problem.path, problem.message, outcome_of(edit)));
    }
    return true;
  }

  /// Restores the place that the problem has in the user's file, since the mend was of no use.
  void restore_place(ConfigProblem& problem, const std::vector<ConfigProblem>& first) const {
    const auto same = std::find_if(first.begin(), first.end(), [&](const ConfigProblem& other) {
      return other.path == problem.path && other.message == problem.message;
    });
    if (same != first.end()) {
      problem.where = same->where;
    } else if (problem.where.starts_with(file_ + ":")) {
      problem.where = file_;
    }
    problem.mend.clear();
  }

  static constexpr std::size_t kMostChanges = 500;
  const std::string& file_;
  LoadOptions options_;
  const ResolveConfig& resolve_;
  MendedConfig mended_;
  std::set<std::string> tried_;
};

}  // namespace

MendedConfig mend_config(const std::string& text,
                         const std::string& file,
                         const LoadOptions& options,
                         const ResolveConfig& resolve) {
  ConfigProblems said_later;
  parse_json_document(text, file, &said_later);
  return Mender(text, file, options, resolve).mend();
}

}  // namespace dstrain
