// ~/.ssh/config and /etc/ssh/ssh_config as lists of directives: words, quotes, comments, Include.
// Their meaning is a matter of ssh_config.h.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dstrain::launcher {

/// Thrown for an OpenSSH client configuration that cannot be understood or followed. what() is one
/// sentence that starts with file:line. Exit code 3: hosts.
class SshConfigError : public std::runtime_error {
 public:
  explicit SshConfigError(const std::string& what, std::string openssh_for = {})
      : std::runtime_error(what), openssh_for_(std::move(openssh_for)) {}
  /// The part that OpenSSH understands and this reader does not: "ProxyJump (FILE:LINE)"; empty if
  /// it is wrong for both.
  [[nodiscard]] const std::string& openssh_for() const { return openssh_for_; }

 private:
  std::string openssh_for_;
};

struct SshDirective {
  std::string keyword{};  ///< in lower case
  std::vector<std::string> arguments{};
  std::string where{};  ///< "file:line"
  /// The directives of each file that an Include names.
  std::vector<std::vector<SshDirective>> included{};
};

struct SshConfigPaths {
  std::string include_folder{};  ///< relative paths of Include start here
  std::string home{};            ///< "~" stands for it
};

/// A file that is not there has no directives. Throws SshConfigError.
std::vector<SshDirective> read_ssh_config_file(const std::string& path,
                                               const SshConfigPaths& paths);

/// One line: a keyword, spaces or "=", arguments, perhaps quoted. No keyword: empty or a comment.
SshDirective parse_ssh_config_line(std::string_view line, const std::string& where);

}  // namespace dstrain::launcher
