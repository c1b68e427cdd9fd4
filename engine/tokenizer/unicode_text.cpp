#include "engine/tokenizer/unicode_text.h"

#include <cstdlib>
#include <memory>

#include <fmt/format.h>
#include <utf8proc.h>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

int options_of(NormalForm form) {
  switch (form) {
    case NormalForm::kNfc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NormalForm::kNfd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NormalForm::kNfkc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalForm::kNfkd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

void append_mapped(std::string& out, std::string_view text, NormalForm form) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made,
                   static_cast<utf8proc_option_t>(options_of(form)));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, std::free);
  check(bytes >= 0, "utf8proc: {}", utf8proc_errmsg(bytes));
  out.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(bytes));
}

// utf8proc composes a Hangul syllable with U+11A7 behind it into that syllable, so that U+11A7 is
// lost. It is not a trailing consonant (Unicode 15.0, section 3.12) and combines with nothing.
void append_normalized(std::string& out, std::string_view text, NormalForm form) {
  constexpr std::string_view kLone = "\u11A7";
  for (std::size_t at; (at = text.find(kLone)) != std::string_view::npos;) {
    append_mapped(out, text.substr(0, at), form);
    out += kLone;
    text.remove_prefix(at + kLone.size());
  }
  append_mapped(out, text, form);
}

bool is_ascii(char byte) {
  return static_cast<unsigned char>(byte) < 0x80;
}

utf8proc_category_t category_of(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

}  // namespace

void append_character(std::string& text, char32_t character) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
}

// ASCII is the same in every form. Other characters are taken together with the ASCII character in
// front of them, which they may combine with; the ASCII character after them starts afresh.
std::string normalized(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    if (is_ascii(text[at])) {
      ++at;
      continue;
    }
    const std::size_t begin = at > done ? at - 1 : at;
    out.append(text, done, begin - done);
    while (at < text.size() && !is_ascii(text[at])) {
      ++at;
    }
    append_normalized(out, text.substr(begin, at - begin), form);
    done = at;
  }
  out.append(text, done);
  return out;
}

bool is_space(char32_t character) {
  if (character < 0x80) {
    return character == ' ' || (character >= '\t' && character <= '\r');
  }
  const utf8proc_category_t category = category_of(character);
  return character == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_numeric(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t character) {
  if (character < 0x80) {
    return character > ' ' && character < 0x7F && !(character >= '0' && character <= '9') &&
           !((character | 0x20U) >= 'a' && (character | 0x20U) <= 'z');
  }
  const utf8proc_category_t category = category_of(character);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

void append_lower_case(std::string& text, char32_t character) {
  constexpr char32_t kDottedI = 0x130;  // its lower case is two characters (SpecialCasing.txt)
  if (character == kDottedI) {
    text += "i\xCC\x87";
    return;
  }
  append_character(
      text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
}

std::size_t end_of_grapheme(std::string_view text, std::size_t at) {
  auto before = static_cast<utf8proc_int32_t>(next_character(text, at));
  utf8proc_int32_t state = 0;
  while (at < text.size()) {
    std::size_t behind = at;
    const auto next = static_cast<utf8proc_int32_t>(next_character(text, behind));
    if (utf8proc_grapheme_break_stateful(before, next, &state)) {
      break;
    }
    before = next;
    at = behind;
  }
  return at;
}

}  // namespace dstrain
