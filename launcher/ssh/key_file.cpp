#include "launcher/ssh/key_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>

#include "engine/base/regular_file.h"
#include "launcher/ssh/ssh_agent_client.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kOpensshBegin = "-----BEGIN OPENSSH PRIVATE KEY-----";
constexpr std::string_view kOpensshMagic{"openssh-key-v1\0", 15};

std::string from_base64(std::string_view text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    int value = 0;
    if (c >= 'A' && c <= 'Z') {
      value = c - 'A';
    } else if (c >= 'a' && c <= 'z') {
      value = c - 'a' + 26;
    } else if (c >= '0' && c <= '9') {
      value = c - '0' + 52;
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else {
      continue;  // line ends, padding
    }
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes += static_cast<char>(bits >> num_bits & 0xff);
    }
  }
  return bytes;
}

/// magic, cipher, key derivation, its options, number of keys, public key, …
void inspect_openssh_format(std::string_view text, KeyFile& key) {
  text.remove_prefix(kOpensshBegin.size());
  const std::string bytes = from_base64(text.substr(0, text.find('-')));
  std::string_view rest = bytes;
  if (!rest.starts_with(kOpensshMagic)) {
    key.state = KeyFile::State::kNotAKey;
    key.problem = "is damaged";
    return;
  }
  rest.remove_prefix(kOpensshMagic.size());
  const std::string_view cipher = take_ssh_string(rest);
  take_ssh_string(rest);
  take_ssh_string(rest);
  rest.remove_prefix(std::min<std::size_t>(4, rest.size()));
  key.public_blob = take_ssh_string(rest);
  if (cipher != "none") key.state = KeyFile::State::kEncrypted;
}

}  // namespace

KeyFile inspect_key_file(const std::string& path) {
  KeyFile key;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return key;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  const bool is_file = std::filesystem::is_regular_file(path, error);
  if (is_file && file) text.assign(std::istreambuf_iterator<char>(file), {});
  if (!is_file || !file) {
    key.state = KeyFile::State::kUnreadable;
    key.problem = "cannot be read";
    return key;
  }
  key.state = KeyFile::State::kUsable;
  if (text.starts_with(kOpensshBegin)) {
    inspect_openssh_format(text, key);
  } else if (text.find("PRIVATE KEY-----") == std::string::npos) {
    key.state = KeyFile::State::kNotAKey;
    key.problem = text.starts_with("ssh-") || text.starts_with("ecdsa-")
                      ? "is the public half of a key; name the file without .pub"
                      : "is not a private key";
  } else if (text.find("ENCRYPTED") != std::string::npos) {
    key.state = KeyFile::State::kEncrypted;
  }
  if (key.state == KeyFile::State::kEncrypted) key.problem = "has a passphrase";
  if (key.public_blob.empty()) {
    std::string type, base64;
    std::istringstream(read_regular_file(path + ".pub", kMostHandWrittenBytes).text) >> type >>
        base64;
    key.public_blob = from_base64(base64);
  }
  return key;
}

}  // namespace dstrain::launcher
