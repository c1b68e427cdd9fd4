// The host's own name, for messages.
#pragma once

#include <string>

#include <sys/utsname.h>

namespace dstrain {

inline std::string host_name() {
  utsname names{};
  uname(&names);
  return names.nodename;
}

}  // namespace dstrain
