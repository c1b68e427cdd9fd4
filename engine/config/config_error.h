// ConfigError: the user's config, command line or a file that it names is wrong. Exit code 2.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace dstrain {

/// One change of a config. Paths are dotted, as --set takes them.
struct ConfigEdit {
  enum class Kind : std::uint8_t {
    kSet,          ///< `path` gets the JSON text `value`
    kRemove,       ///< `path` goes
    kRename,       ///< the key at `path` belongs at the path `value`
    kRemoveSecond  ///< `path` is written twice, and the second one goes
  };
  Kind kind = Kind::kSet;
  std::string path;
  std::string value;

  bool operator==(const ConfigEdit&) const = default;
};

/// One mistake in a config, and what would correct it.
struct ConfigProblem {
  std::string where;  ///< "run.json:3:5", "--set a.b=1", or only the file
  std::string path;   ///< "optimizer.params.lr"
  std::string message;
  std::vector<ConfigEdit> mend;  ///< empty where only the user can know
};

/// "where: path: message", parts that are empty left out.
std::string sentence_of(const ConfigProblem& problem);
/// The same with the arguments that correct it, as a shell takes them: "… (--set a.b=1)".
std::string sentence_with_mend(const ConfigProblem& problem);

/// what() is one sentence: where (file:line:column and JSON path, or the flag), what was found,
/// what was expected, and the nearest fix. For several problems it is a line that counts them, and
/// a line for each.
class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(const std::string& message)
      : ConfigError(ConfigProblem{.where = {}, .path = {}, .message = message, .mend = {}}) {}
  explicit ConfigError(ConfigProblem problem);
  /// Takes at least one problem; `file` is the one that they are counted in.
  ConfigError(std::vector<ConfigProblem> problems, const std::string& file);

  [[nodiscard]] const std::vector<ConfigProblem>& problems() const { return problems_; }

 private:
  std::vector<ConfigProblem> problems_;
};

}  // namespace dstrain
