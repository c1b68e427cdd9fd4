// SshFailure: what goes wrong on the way to a host, thrown where it is found and turned into the
// host's HostFailure where the way began.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace dstrain::launcher {

class SshFailure : public std::runtime_error {
 public:
  SshFailure(const std::string& what, std::string fix)
      : std::runtime_error(what), fix_(std::move(fix)) {}
  [[nodiscard]] const std::string& fix() const { return fix_; }

 private:
  std::string fix_;
};

}  // namespace dstrain::launcher
