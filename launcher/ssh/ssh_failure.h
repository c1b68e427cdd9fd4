// SshFailure: what goes wrong on the way to a host, thrown where it is found and turned into the
// host's HostFailure where the way began.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace dstrain::launcher {

class SshFailure : public std::runtime_error {
 public:
  SshFailure(const std::string& what, std::string fix, std::string openssh_for = {})
      : std::runtime_error(what), fix_(std::move(fix)), openssh_for_(std::move(openssh_for)) {}
  [[nodiscard]] const std::string& fix() const { return fix_; }
  /// The same as in HostFailure.
  [[nodiscard]] const std::string& openssh_for() const { return openssh_for_; }

 private:
  std::string fix_;
  std::string openssh_for_;
};

}  // namespace dstrain::launcher
