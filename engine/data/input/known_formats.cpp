#include "engine/data/input/known_formats.h"

#include <algorithm>
#include <array>

namespace dstrain {
namespace {

using namespace std::string_view_literals;
using Content = KnownFormat::Content;

constexpr const char* kDecompress = "decompress it first";
constexpr const char* kUnpack = "unpack it first";
constexpr const char* kExtract = "extract its text, then `dstrain prepare-data`";

constexpr KnownFormat kJson{
    "JSON, but not JSON lines",
    "write every record as an object on a line of its own, for a list with `jq -c '.[]' FILE`",
    Content::kJson};
constexpr KnownFormat kGzip{"compressed with gzip", kDecompress, Content::kText};
constexpr KnownFormat kZstd{"compressed with zstd", kDecompress, Content::kText};
constexpr KnownFormat kXz{"compressed with xz", kDecompress, Content::kText};
constexpr KnownFormat kBzip2{"compressed with bzip2", kDecompress, Content::kText};
constexpr KnownFormat kLz4{"compressed with lz4", kDecompress, Content::kText};
constexpr KnownFormat kZip{"a zip archive (or a PyTorch or .npz file)", kUnpack, Content::kText};
constexpr KnownFormat kSevenZip{"a 7-Zip archive", kUnpack, Content::kText};
constexpr KnownFormat kRar{"a RAR archive", kUnpack, Content::kText};
constexpr KnownFormat kTar{"a tar archive", kUnpack, Content::kText};
constexpr KnownFormat kParquet{
    "a Parquet file",
    "turn it into JSON lines first: python3 -c \"import sys, pandas; "
    "[pandas.read_parquet(f).to_json(f + '.jsonl', orient='records', lines=True) "
    "for f in sys.argv[1:]]\" FILE…",
    Content::kText};
constexpr KnownFormat kArrow{"an Arrow file", kExtract, Content::kText};
constexpr KnownFormat kAvro{"an Avro file", kExtract, Content::kText};
constexpr KnownFormat kOrc{"an ORC file", kExtract, Content::kText};
constexpr KnownFormat kSqlite{"an SQLite database", kExtract, Content::kText};
constexpr KnownFormat kPdf{"a PDF document", kExtract, Content::kText};
constexpr KnownFormat kOffice{"an office document", kExtract, Content::kText};
constexpr KnownFormat kEpub{"an EPUB book", kExtract, Content::kText};
constexpr KnownFormat kMegatronIndex{"a Megatron .idx file", "name the pair by its prefix",
                                     Content::kOther};
constexpr KnownFormat kLlmq{"an llm.q token file", "make another with `dstrain prepare-data`",
                            Content::kOther};
constexpr KnownFormat kNumpy{"a NumPy .npy file", "write the array alone, with tofile()",
                             Content::kOther};
constexpr KnownFormat kProgram{"a program", "name another file", Content::kOther};
constexpr KnownFormat kImage{"an image", "name another file", Content::kOther};

struct Signature {
  std::size_t offset;
  std::string_view bytes;
  const KnownFormat* format;
};

constexpr std::array kSignatures = {
    Signature{0, "MMIDIDX\0\0"sv, &kMegatronIndex},
    Signature{0, "BIN.TOK\n"sv, &kLlmq},
    Signature{0, "\x1f\x8b"sv, &kGzip},
    Signature{0, "\x28\xb5\x2f\xfd"sv, &kZstd},
    Signature{0,
              "\xfd"
              "7zXZ\0"sv,
              &kXz},
    Signature{4, "1AY&SY"sv, &kBzip2},  // behind "BZh" and a digit
    Signature{0, "\x04\x22\x4d\x18"sv, &kLz4},
    Signature{0, "PK\x03\x04"sv, &kZip},
    Signature{0, "7z\xbc\xaf\x27\x1c"sv, &kSevenZip},
    Signature{0, "Rar!\x1a\x07"sv, &kRar},
    Signature{257, "ustar"sv, &kTar},
    Signature{0, "PAR1"sv, &kParquet},
    Signature{0, "ARROW1"sv, &kArrow},
    Signature{0, "Obj\x01"sv, &kAvro},
    Signature{0, "SQLite format 3\0"sv, &kSqlite},
    Signature{0, "%PDF-"sv, &kPdf},
    Signature{0, "\x93NUMPY"sv, &kNumpy},
    Signature{0,
              "\x7f"
              "ELF"sv,
              &kProgram},
    Signature{0, "\x89PNG\r\n\x1a\n"sv, &kImage},
    Signature{0, "\xff\xd8\xff"sv, &kImage},
    Signature{0, "GIF8"sv, &kImage},
};

struct Extension {
  std::string_view name;
  const KnownFormat* format;
};

constexpr std::array kExtensions = {
    Extension{"json", &kJson},       Extension{"jsonl", &kJson},  Extension{"ndjson", &kJson},
    Extension{"ipynb", &kJson},      Extension{"gz", &kGzip},     Extension{"tgz", &kTar},
    Extension{"zst", &kZstd},        Extension{"zstd", &kZstd},   Extension{"xz", &kXz},
    Extension{"bz2", &kBzip2},       Extension{"lz4", &kLz4},     Extension{"zip", &kZip},
    Extension{"7z", &kSevenZip},     Extension{"rar", &kRar},     Extension{"tar", &kTar},
    Extension{"parquet", &kParquet}, Extension{"arrow", &kArrow}, Extension{"feather", &kArrow},
    Extension{"avro", &kAvro},       Extension{"orc", &kOrc},     Extension{"sqlite", &kSqlite},
    Extension{"pdf", &kPdf},         Extension{"docx", &kOffice}, Extension{"odt", &kOffice},
    Extension{"epub", &kEpub},
};

}  // namespace

const KnownFormat* format_of_content(std::string_view head) {
  for (const Signature& signature : kSignatures) {
    if (head.size() >= signature.offset + signature.bytes.size() &&
        head.substr(signature.offset).starts_with(signature.bytes)) {
      return signature.format;
    }
  }
  return nullptr;
}

std::string extension_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  std::string extension(dot == std::string_view::npos ? "" : name.substr(dot + 1));
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return extension;
}

const KnownFormat* format_of_name(std::string_view path) {
  const std::string extension = extension_of(path);
  for (const Extension& known : kExtensions) {
    if (known.name == extension) {
      return known.format;
    }
  }
  return nullptr;
}

}  // namespace dstrain
