#include "engine/data/input/input_kind.h"

#include <algorithm>
#include <string_view>

#include "engine/data/input/byte_stream.h"

namespace dstrain {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// Reads until `head` has `bytes` bytes or the stream ends; returns whether `head` has them.
bool fill(std::string& head, std::size_t bytes, ByteStream& stream) {
  while (head.size() < bytes) {
    const std::size_t had = head.size();
    head.resize(bytes);
    const std::size_t count = stream.read(std::span(head).subspan(had));
    head.resize(had + count);
    if (count == 0) {
      return false;
    }
  }
  return true;
}

/// The first line that is not blank, if it ends within the first `most` bytes; "" if it is longer
/// or cannot be an object.
std::string first_object_line(std::string& head, std::int64_t most, ByteStream& stream) {
  constexpr std::size_t kFirst = std::size_t{64} << 10;
  for (std::size_t size = kFirst;; size *= 2) {
    const bool has_more = fill(head, size, stream);
    std::string_view text = head;
    text.remove_prefix(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (text.empty() || text.front() != '{') {
      return "";
    }
    const std::size_t end = text.find('\n');
    if (end != std::string_view::npos || !has_more) {
      return std::string(text.substr(0, end));
    }
    if (static_cast<std::int64_t>(head.size()) >= most) {
      return "";
    }
  }
}

class Question {
 public:
  Question(const std::string& path, const KindQuestion& question)
      : question_(question),
        name_(name_without_compression(path)),
        extension_(extension_of(name_)) {}

  /// The kind of the stream's content, after decompression if it is compressed.
  InputKind answer(ByteStream& stream) {
    std::string head;
    fill(head, kSignatureBytes, stream);
    InputKind kind;
    kind.refused = format_of_content(head);
    if (kind.refused != nullptr || is_asked_as_text()) {
      return kind;
    }
    const KnownFormat* by_name = format_of_name(name_);
    const bool is_json = by_name != nullptr && by_name->content == KnownFormat::Content::kJson;
    if (by_name != nullptr && !is_json) {
      kind.refused = by_name;
    } else if (extension_ == "jsonl" || extension_ == "ndjson") {
      kind.is_json_lines = true;
    } else if (extension_ == "ipynb" || !first_line_is_record(head, stream, is_json)) {
      kind.refused = by_name;
    } else {
      kind.is_json_lines = true;
    }
    return kind;
  }

 private:
  [[nodiscard]] bool is_asked_as_text() const {
    const auto& asked = question_.as_text;
    return std::find(asked.begin(), asked.end(), extension_) != asked.end();
  }

  /// Whether the file begins with an object on a line of its own; unless the file's name says JSON
  /// or the field was named by the user, the object must also have the field.
  bool first_line_is_record(std::string& head, ByteStream& stream, bool is_json) const {
    const std::string line = first_object_line(head, question_.longest_line, stream);
    if (line.empty()) {
      return false;
    }
    const JsonField::Found found = question_.field.read(line).found;
    const bool any_object = is_json || question_.field_was_named;
    return found == JsonField::Found::kText || found == JsonField::Found::kConversation ||
           (any_object &&
            (found == JsonField::Found::kNoField || found == JsonField::Found::kNoString));
  }

  const KindQuestion& question_;
  std::string_view name_;
  std::string extension_;
};

}  // namespace

InputKind find_input_kind(const std::string& path, const KindQuestion& question) {
  try {
    std::string head;
    fill(head, kSignatureBytes, *ByteStream::open(path, Compression::kNone));
    const Compression compression = compression_of(head);
    InputKind kind = Question(path, question).answer(*ByteStream::open(path, compression));
    kind.compression = compression;
    return kind;
  } catch (const ReadFailure&) {
    return {};
  }
}

}  // namespace dstrain
