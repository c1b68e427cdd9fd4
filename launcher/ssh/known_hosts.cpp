#include "launcher/ssh/known_hosts.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <libssh2.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "launcher/ssh/host_pattern.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Takes the next word of a line off its front.
std::string_view take_word(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r"), rest.size()));
  const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r"));
  rest.remove_prefix(word.size());
  return word;
}

struct FreeSession {
  void operator()(LIBSSH2_SESSION* session) const { libssh2_session_free(session); }
};
struct FreeKnownHosts {
  void operator()(LIBSSH2_KNOWNHOSTS* hosts) const { libssh2_knownhost_free(hosts); }
};

/// One hashed name, "|1|salt|digest", which libssh2 can compare with a plain one.
class HashedName {
 public:
  explicit HashedName(std::string_view hashed)
      : session_(libssh2_session_init_ex(nullptr, nullptr, nullptr, nullptr)),
        hosts_(session_ ? libssh2_knownhost_init(session_.get()) : nullptr) {
    if (!hosts_ || !is_well_formed(hashed)) return;
    const std::string line = fmt::format("{} {} {}", hashed, kSomeType, kSomeKey);
    libssh2_knownhost_readline(hosts_.get(), line.data(), line.size(),
                               LIBSSH2_KNOWNHOST_FILE_OPENSSH);
  }

  [[nodiscard]] bool is(const std::string& name) const {
    if (!hosts_) return false;
    libssh2_knownhost* found = nullptr;
    return libssh2_knownhost_checkp(hosts_.get(), name.c_str(), -1, kSomeKey, 0,
                                    LIBSSH2_KNOWNHOST_TYPE_PLAIN | LIBSSH2_KNOWNHOST_KEYENC_BASE64 |
                                        LIBSSH2_KNOWNHOST_KEY_SSHRSA,
                                    &found) == LIBSSH2_KNOWNHOST_CHECK_MATCH;
  }

 private:
  /// Salt and digest of 20 bytes each, in base64. Over a digest of another length libssh2 1.10
  /// loses memory each time it compares.
  static bool is_well_formed(std::string_view hashed) {
    constexpr std::string_view kKind = "|1|";
    const auto is_sha1 = [](std::string_view base64) {
      constexpr std::size_t kSize = 28;
      return base64.size() == kSize && base64.back() == '=' &&
             base64.find_first_not_of(kBase64) == kSize - 1;
    };
    const std::size_t middle = hashed.find('|', kKind.size());
    return hashed.starts_with(kKind) && middle != std::string_view::npos &&
           is_sha1(hashed.substr(kKind.size(), middle - kKind.size())) &&
           is_sha1(hashed.substr(middle + 1));
  }

  // Only the name is asked about; the key is the same on both sides.
  static constexpr const char* kSomeType = "ssh-rsa";
  static constexpr const char* kSomeKey = "AAAAB3NzaC1yc2E=";

  std::unique_ptr<LIBSSH2_SESSION, FreeSession> session_;
  std::unique_ptr<LIBSSH2_KNOWNHOSTS, FreeKnownHosts> hosts_;
};

bool same_key(std::string_view a, std::string_view b) {
  const auto unpadded = [](std::string_view text) {
    return text.substr(0, text.find_last_not_of('=') + 1);
  };
  return unpadded(a) == unpadded(b);
}

/// "w0" of "[w0]:2222"; empty if it has no port.
std::string without_port(const std::string& name) {
  const size_t close = name.rfind("]:");
  return name.starts_with('[') && close != std::string::npos ? name.substr(1, close - 1)
                                                             : std::string();
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char byte : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(byte);
    for (num_bits += 8; num_bits >= 6; num_bits -= 6)
      text += kBase64[bits >> (num_bits - 6) & 63];
  }
  if (num_bits > 0) text += kBase64[bits << (6 - num_bits) & 63];
  return text;
}

HostKey HostKey::from_blob(std::string_view blob) {
  HostKey key;
  key.base64 = to_base64(blob);
  key.base64.resize((key.base64.size() + 3) / 4 * 4, '=');
  // It starts with its type: four bytes of length, highest first, and the name.
  std::size_t length = 0;
  for (std::size_t i = 0; i < 4 && i < blob.size(); ++i)
    length = length << 8 | static_cast<unsigned char>(blob[i]);
  if (blob.size() >= 4 && length <= blob.size() - 4) key.type = blob.substr(4, length);
  return key;
}

struct KnownHosts::Entry {
  std::string names{};  ///< "w0,w*,!w3"; empty if hashed
  std::unique_ptr<HashedName> hashed{};
  bool revoked = false;
  HostKey key{};
  std::string where{};

  [[nodiscard]] bool is_of(const std::string& name) const {
    return hashed ? hashed->is(name) : matches_comma_list(name, names);
  }
};

KnownHosts::KnownHosts(std::vector<std::string> files, std::size_t num_writable) {
  if (num_writable > 0 && !files.empty()) writable_ = files.front();
  for (const std::string& file : files)
    read(file);
}

KnownHosts::~KnownHosts() = default;

void KnownHosts::read(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;  // a device may have no end
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::string_view rest = line;
    std::string_view names = take_word(rest);
    if (names.empty() || names.starts_with('#')) continue;
    auto entry = std::make_unique<Entry>();
    if (names.starts_with('@')) {
      if (names == "@cert-authority") authorities_.emplace_back(take_word(rest));
      if (names != "@revoked") continue;
      entry->revoked = true;
      names = take_word(rest);
    }
    entry->key.type = take_word(rest);
    entry->key.base64 = take_word(rest);
    entry->where = fmt::format("{}:{}", path, number);
    if (entry->key.base64.empty()) continue;  // not a line of this format: it makes nothing known
    if (names.starts_with('|')) {
      entry->hashed = std::make_unique<HashedName>(names);
    } else {
      entry->names = names;
    }
    entries_.push_back(std::move(entry));
  }
}

std::vector<const KnownHosts::Entry*> KnownHosts::entries_of(const std::string& name) const {
  std::vector<const Entry*> found;
  for (const auto& entry : entries_) {
    if (entry->is_of(name)) found.push_back(entry.get());
  }
  return found;
}

HostKeyVerdict KnownHosts::judge(const std::string& name, const HostKey& key) const {
  using Kind = HostKeyVerdict::Kind;
  const std::vector<const Entry*> own = entries_of(name);
  // A host known without the port is the same host if it has the same key; another key there
  // says nothing about this port. OpenSSH does the same.
  const std::string bare_name = without_port(name);
  std::vector<const Entry*> bare;
  if (!bare_name.empty()) bare = entries_of(bare_name);

  const Entry* known = nullptr;
  for (const std::vector<const Entry*>& entries : {own, bare}) {
    for (const Entry* const entry : entries) {
      if (entry->key.type != key.type || !same_key(entry->key.base64, key.base64)) continue;
      if (entry->revoked) return {Kind::kRevoked, entry->where, entry->key.type};
      if (known == nullptr) known = entry;
    }
  }
  if (known != nullptr) return {Kind::kKnown, known->where, known->key.type};
  // A known key of the same type, if there is one. A key of another type is a change as well: the
  // host was asked for the known types first, and no longer has any of them.
  const Entry* old = nullptr;
  for (const Entry* const entry : own) {
    if (entry->revoked) continue;
    if (old == nullptr || (old->key.type != key.type && entry->key.type == key.type)) old = entry;
  }
  if (old != nullptr) return {Kind::kChanged, old->where, old->key.type};
  return {};
}

bool KnownHosts::has_authority(const std::string& name) const {
  return std::any_of(authorities_.begin(), authorities_.end(),
                     [&](const std::string& names) { return matches_comma_list(name, names); });
}

std::vector<std::string> KnownHosts::key_types(const std::string& name) const {
  std::vector<const Entry*> entries = entries_of(name);
  const std::string bare_name = without_port(name);
  if (!bare_name.empty()) {
    for (const Entry* const entry : entries_of(bare_name))
      entries.push_back(entry);
  }
  std::vector<std::string> types;
  for (const Entry* const entry : entries) {
    if (entry->revoked) continue;
    if (std::find(types.begin(), types.end(), entry->key.type) == types.end()) {
      types.push_back(entry->key.type);
    }
  }
  return types;
}

namespace {

/// Appends a line of its own, and has it on the disk. Throws std::system_error.
void append_line(const std::string& path, const std::string& line) {
  const auto fail = [&] { throw std::system_error(errno, std::generic_category(), path); };
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::exists(folder)) {
    std::filesystem::create_directories(folder);
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  }
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) fail();
  struct stat state {};
  if (fstat(file.get(), &state) != 0) fail();
  std::string text = line + "\n";
  char last = '\n';
  if (S_ISREG(state.st_mode) && state.st_size > 0 &&
      pread(file.get(), &last, 1, state.st_size - 1) != 1) {
    fail();
  }
  if (last != '\n') text.insert(0, "\n");
  // The line is written in one piece, so that launchers that do the same at the same time do not
  // mix their lines.
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail();
  if (S_ISREG(state.st_mode) && fsync(file.get()) != 0) fail();
}

}  // namespace

std::string KnownHosts::add(const std::string& name, const HostKey& key) {
  auto entry = std::make_unique<Entry>();
  entry->names = name;
  entry->key = key;
  entry->where = writable_.empty() ? "accepted in this run" : writable_;
  entries_.push_back(std::move(entry));
  if (writable_.empty()) return {};
  try {
    append_line(writable_, fmt::format("{} {} {}", name, key.type, key.base64));
  } catch (const std::system_error& error) {
    return fmt::format("the key of {} is accepted for this run only: {}", name, error.what());
  }
  return {};
}

}  // namespace dstrain::launcher
