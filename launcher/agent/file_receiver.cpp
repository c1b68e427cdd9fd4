#include "launcher/agent/file_receiver.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

/// Reads a file of "$2" bytes from stdin and puts it in the place of "$1". Without the count a
/// connection that breaks in the middle would look like the end of the file; and what is said then
/// has no reader, which must not end the shell before it has cleaned up.
constexpr const char* kReceiveFile =
    "set -e; umask 077; case $1 in */*) mkdir -p -- \"${1%/*}\";; esac; "
    "part=$1.part.$$; trap '' PIPE; trap 'rm -f -- \"$part\"' EXIT; cat > \"$part\"; "
    "size=$(wc -c < \"$part\"); [ \"$size\" -eq \"$2\" ] || "
    "{ echo \"$size bytes of $2 arrived\" >&2; exit 1; }; "
    "chmod -- \"$3\" \"$part\"; mv -f -- \"$part\" \"$1\"";

/// One file on its way; owned by its own callbacks.
struct Receipt {
  std::unique_ptr<ByteStream> stream{};
  std::string complaint{};  ///< what the host's shell said
};

}  // namespace

std::vector<std::string> receive_file_command(const std::string& path,
                                              std::size_t bytes,
                                              int mode) {
  return {"/bin/sh",
          "-c",
          kReceiveFile,
          "sh",
          path.starts_with('-') ? "./" + path : path,
          std::to_string(bytes),
          fmt::format("{:o}", mode)};
}

void await_receipt(std::unique_ptr<ByteStream> stream,
                   const std::string& host,
                   const std::string& path,
                   std::function<void(std::optional<HostFailure>)> done) {
  const auto receipt = std::make_shared<Receipt>();
  receipt->stream = std::move(stream);
  receipt->stream->listen(
      {.on_data = [](std::string_view) {},
       .on_error_data =
           [receipt](std::string_view bytes) {
             constexpr std::size_t kEnough = 4096;
             if (receipt->complaint.size() < kEnough) receipt->complaint += bytes;
           },
       .on_closed =
           [receipt, host, path, done = std::move(done)](const StreamEnd& end) {
             // Ends the circle of the receipt and its own stream.
             const auto finished = std::move(receipt->stream);
             if (end.exit_code == 0) return done(std::nullopt);
             std::string why = receipt->complaint;
             while (why.ends_with('\n') || why.ends_with('\r'))
               why.pop_back();
             if (!end.why.empty()) why = end.why + (why.empty() ? "" : "; " + why);
             done(HostFailure{
                 .host = host,
                 .phase = "copy",
                 .what = fmt::format("{} could not be written: {}", path,
                                     why.empty() ? "the host does not say why" : why),
                 .fix = "free some space, or name a folder that the user may write to"});
           }});
}

}  // namespace dstrain::launcher
