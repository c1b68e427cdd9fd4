// A private key's file, looked at before it is used: whether it can be used here at all.
#pragma once

#include <string>

namespace dstrain::launcher {

struct KeyFile {
  enum class State { kMissing, kUsable, kEncrypted, kUnreadable, kNotAKey };
  State state = State::kMissing;
  std::string problem{};      ///< a clause, if it is there and not usable
  std::string public_blob{};  ///< empty if neither the file nor its .pub has it
};

KeyFile inspect_key_file(const std::string& path);

}  // namespace dstrain::launcher
