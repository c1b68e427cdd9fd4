// SshConfigEvaluation: which directives of an OpenSSH configuration apply to one host: Host and
// Match blocks, the first value of each directive, and those that cannot be honoured.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/ssh/ssh_config_file.h"
#include "launcher/ssh/ssh_target.h"

namespace dstrain::launcher {

/// Throws SshConfigError: "file:line: what".
[[noreturn]] void refuse(const SshDirective& directive, const std::string& what);
/// Refuses something that OpenSSH's client would do: `name` is the directive's, or a part of it.
[[noreturn]] void refuse_here(const SshDirective& directive,
                              const std::string& name,
                              const std::string& what);

/// The pattern with each ${VARIABLE}, and each "%" and letter of `meanings`, replaced. Throws
/// SshConfigError for a sign or a variable that has no meaning.
std::string expand_signs(const std::string& pattern,
                         const SshDirective& directive,
                         const std::map<char, std::string>& meanings);

class SshConfigEvaluation {
 public:
  /// Refers to its arguments, and to the directives that it is run on, as long as it lives.
  SshConfigEvaluation(const SshTarget& target, const std::string& own_name)
      : target_(target), own_name_(own_name) {}

  /// Takes a file's directives; called in the order of precedence. Throws SshConfigError for what
  /// cannot be decided here.
  void run(const std::vector<SshDirective>& directives);
  /// Throws SshConfigError if a directive applies that is not supported and would change the login.
  void refuse_unsupported(const std::string& written) const;

  /// The directive that counts; nullptr if there is none.
  [[nodiscard]] const SshDirective* find(std::string_view keyword) const;
  /// IdentityFile is the one directive whose every line counts.
  [[nodiscard]] const std::vector<const SshDirective*>& identity_files() const {
    return identity_files_;
  }
  [[nodiscard]] std::string user() const;
  /// HostName with its %h, or what the hostfile says.
  [[nodiscard]] std::string host_name() const;

 private:
  [[nodiscard]] bool match(const SshDirective& directive) const;

  const SshTarget& target_;
  const std::string& own_name_;
  std::map<std::string, const SshDirective*, std::less<>> first_;
  std::vector<const SshDirective*> identity_files_;
};

}  // namespace dstrain::launcher
