#include <algorithm>
#include <cctype>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/base/checksum.h"
#include "engine/chat/chat_example.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/pytorch/torch_file.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/config_error.h"
#include "engine/config/config_json.h"
#include "engine/config/json_text.h"
#include "engine/config/mend_config.h"
#include "engine/data/megatron_index.h"
#include "engine/jinja/json.h"
#include "engine/jinja/template.h"
#include "engine/tokenizer/huggingface_tokenizer.h"
#include "engine/tokenizer/older_vocabularies.h"
#include "launcher/agent/agent_protocol.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/ssh_config.h"
#include "tests/fuzz/bytes_as_file.h"
#include "tests/fuzz/wire_targets.h"

namespace dstrain::fuzz {
namespace {

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Every byte that the header speaks of is read, so that a sanitizer sees a wrong one.
unsigned touch(Bytes bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) {
    sum += static_cast<unsigned>(byte);
  }
  return sum;
}

void safetensors(Bytes bytes) {
  const BytesAsFile file(bytes);
  try {
    const SafetensorsFile tensors(file.path());
    volatile unsigned sum = touch(tensors.header());
    for (const auto& [name, entry] : tensors.tensors()) {
      sum = sum + touch(tensors.data(entry));
    }
  } catch (const CheckpointError&) {
  }
}

/// The first line is a checksum of the others, at which any change would be refused. So the first
/// line is made right here, and what is behind the checksum meets the bytes.
void manifest(Bytes bytes) {
  const std::string_view text = text_of(bytes);
  const std::string_view rest = text.substr(std::min(text.find('\n'), text.size() - 1) + 1);
  for (const int format : {1, 2, 3}) {
    const std::string whole = "{\"dstrain_checkpoint\": " + std::to_string(format) +
                              ", \"xxh3_64\": \"" + checksum_text(checksum(rest)) + "\",\n" +
                              std::string(rest);
    try {
      const Manifest read = parse_manifest(whole);
      if (fault_of_cover(read)) continue;
      // Whatever was parsed can be written and parsed again.
      if (to_text(parse_manifest(to_text(read))) != to_text(read)) {
        throw std::logic_error("a manifest that changes when it is written");
      }
    } catch (const CheckpointError&) {
    }
  }
  try {
    parse_manifest(text);
  } catch (const CheckpointError&) {
  }
}

void torch(Bytes bytes) {
  try {
    // Checksums would refuse nearly every change before it reaches what is behind them.
    const TorchArchive archive = parse_torch_archive(bytes, Checksums::kIgnored);
    volatile unsigned sum = 0;
    for (const auto& [key, storage] : archive.storages) {
      sum = sum + touch(bytes.subspan(static_cast<std::size_t>(storage.begin_byte),
                                      static_cast<std::size_t>(storage.bytes)));
      try {
        check_crc32(bytes, storage);
      } catch (const DamagedCheckpoint&) {
      }
    }
  } catch (const CheckpointError&) {
  }
  // Without the archive around it, more changes reach the pickle.
  try {
    parse_pickle(bytes);
  } catch (const CheckpointError&) {
  }
}

void idx(Bytes bytes) {
  const BytesAsFile file(bytes);
  try {
    const auto mapped = MappedFile::open<ConfigError>(file.path());
    // The .bin file: none, a few tokens, or the seed's.
    for (const std::int64_t bin_bytes : {std::int64_t{0}, std::int64_t{24}, std::int64_t{3000}}) {
      try {
        read_megatron_index(mapped, "seed.bin", bin_bytes);
      } catch (const ConfigError&) {
      }
    }
  } catch (const ConfigError&) {
  }
}

void config(Bytes bytes) {
  const BytesAsFile file(bytes);
  for (const bool accept_model_config : {false, true}) {
    try {
      LoadedConfig loaded =
          load_config(file.path(), {.overrides = {}, .accept_model_config = accept_model_config});
      resolve_config(loaded, 8);
      to_json(loaded);
      describe_origins(loaded);
    } catch (const ConfigError&) {
    }
  }
}

/// A text that --write-fixed takes as mended is accepted, and has nothing left to mend.
void mended(Bytes bytes) {
  const ResolveConfig resolve = [](LoadedConfig& loaded, ConfigProblems& problems) {
    resolve_config(loaded, 8, {}, problems);
  };
  const std::vector<std::vector<std::string>> flags = {
      {}, {"training.steps=3", "data.train=d", "optimizer.params.lr=null"}};
  for (const std::vector<std::string>& sets : flags) {
    MendedConfig whole;
    try {
      const std::string text = read_json_text(BytesAsFile(bytes).path());
      whole = mend_config(text, "run.json", {.overrides = sets}, resolve);
    } catch (const ConfigError&) {  // no text, no JSON, or no place for a flag
      continue;
    }
    if (!whole.left.empty()) continue;
    const BytesAsFile file(std::as_bytes(std::span(whole.text)));
    try {
      LoadedConfig loaded = load_config(file.path(), {});
      resolve_config(loaded, 8);
    } catch (const ConfigError& error) {
      throw std::logic_error(std::string("mended, and yet: ") + error.what());
    }
    if (mend_config(whole.text, "run.json", {}, resolve).text != whole.text) {
      throw std::logic_error("mended, and mended again");
    }
  }
}

/// Whatever is accepted as a tokenizer encodes any text, or says why it cannot, and its ids are its
/// own.
void tokenizer(Bytes bytes) {
  try {
    const auto made = make_huggingface_tokenizer(std::string(text_of(bytes)), "tokenizer.json");
    const std::string texts[] = {"Hello  world's\n\n 42 e\u0301 \u4f60\u597d<s>\xE2\x82",
                                 std::string(text_of(bytes).substr(0, 200))};
    for (const std::string& text : texts) {
      try {
        std::vector<std::int32_t> ids;
        made->encode(text, ids);
        static_cast<void>(made->decode(ids));
        static_cast<void>(made->length_to_cut(text));
      } catch (const ConfigError&) {
      }
    }
  } catch (const ConfigError&) {
  }
}

/// The same of the older forms.
void vocabularies(Bytes bytes) {
  const std::string_view text = text_of(bytes);
  try {
    static_cast<void>(tokenizer_json_of_ranks(text, "ranks"));
  } catch (const ConfigError&) {
  }
  const std::size_t cut = text.find('\f');
  try {
    const VocabularyFiles files{
        .vocab_json = std::string(text.substr(0, cut)),
        .merges_txt = std::string(cut == std::string_view::npos ? "" : text.substr(cut + 1)),
        .tokenizer_config = cut == std::string_view::npos ? std::string(text) : ""};
    const std::string json = tokenizer_json_of(files, "folder");
    static_cast<void>(make_huggingface_tokenizer(json, "tokenizer.json"));
  } catch (const ConfigError&) {
  }
}

void hostfile(Bytes bytes) {
  try {
    launcher::Hostfile parsed = launcher::parse_hostfile(text_of(bytes), "hostfile");
    // The text serves as a filter, too: it has a grammar of its own.
    const std::string filter(text_of(bytes).substr(0, text_of(bytes).find('\n')));
    launcher::filter_hosts(parsed.hosts, {.include = filter});
    launcher::filter_hosts(parsed.hosts, {.exclude = filter});
  } catch (const launcher::HostfileError&) {
  }
}

/// Both directions: what one side may say is read by the other.
template <typename Decode>
void read_frames(Bytes bytes, const Decode& decode) {
  launcher::FrameReader reader;
  try {
    reader.feed(text_of(bytes), [&](const launcher::Frame& frame) {
      try {
        const auto message = decode(frame);
        // Whatever was parsed can be written again.
        const std::string again = launcher::encode(message);
        launcher::FrameReader().feed(again, [&](const launcher::Frame& same) {
          if (launcher::encode(decode(same)) != again) {
            throw std::logic_error("a message that changes when it is sent on");
          }
        });
      } catch (const ProtocolError&) {
      }
    });
  } catch (const ProtocolError&) {
  }
}

void ssh_config(Bytes bytes) {
  std::string lower(text_of(bytes));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower.find("include") != std::string::npos) return;  // would read this machine's files
  const BytesAsFile file(bytes);
  const std::string first_line(text_of(bytes).substr(0, text_of(bytes).find('\n')));
  const launcher::SshUser user{.home = "/home/ann", .name = "ann", .hostname = "here"};
  for (const std::string& host : {std::string("w0"), std::string("bob@w1.far:22"), first_line}) {
    try {
      static_cast<void>(launcher::SshConfig(user, file.path(), "/no/such/file").settings_for(host));
    } catch (const launcher::SshConfigError&) {
    } catch (const launcher::HostfileError&) {
    }
  }
}

void known_hosts(Bytes bytes) {
  const BytesAsFile file(bytes);
  const launcher::KnownHosts known({file.path()});
  const launcher::HostKey key = launcher::HostKey::from_blob(text_of(bytes));
  for (const char* const name : {"w0", "[w0]:2222", "w3.example"}) {
    const launcher::HostKeyVerdict verdict = known.judge(name, key);
    const bool has_types = !known.key_types(name).empty();
    // A changed key requires a known one: a host without any key is never more than unknown.
    if (verdict.kind == launcher::HostKeyVerdict::Kind::kChanged && !has_types) {
      throw std::logic_error("a changed key of a host without keys");
    }
  }
}

/// A chat template, with a conversation to write.
void chat_template(Bytes bytes) {
  static const std::vector<std::pair<std::string, jinja::Value>> kNames = [] {
    const auto json = nlohmann::ordered_json::parse(
        R"({"messages": [{"role": "system", "content": "s \u00e4"}, {"role": "user", "content": "q"},
            {"role": "assistant", "content": "<think>t</think>a", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, null, 2.5]}}}]}],
            "tools": [{"function": {"name": "f"}}], "eos_token": "</s>", "add_generation_prompt": true})");
    std::vector<std::pair<std::string, jinja::Value>> names;
    for (const auto& [name, value] : json.items()) {
      names.emplace_back(name, jinja::from_json(value));
    }
    return names;
  }();
  try {
    static_cast<void>(jinja::Template(text_of(bytes)).render(kNames));
  } catch (const jinja::TemplateError&) {
  }
}

/// A line of fine-tuning data.
void chat_line(Bytes bytes) {
  static_cast<void>(read_chat_example(text_of(bytes)));
}

void agent(Bytes bytes) {
  read_frames(bytes, launcher::decode_to_agent);
  read_frames(bytes, launcher::decode_from_agent);
}

}  // namespace

const std::vector<FuzzTarget>& all_targets() {
  static const std::vector<FuzzTarget> targets = {
      {"safetensors",
       safetensors,
       {"tests/golden", DSTRAIN_UNPACKED, "tests/fuzz/seeds/safetensors"}},
      {"manifest", manifest, {"tests/fuzz/seeds/manifest"}},
      {"torch", torch, {DSTRAIN_UNPACKED "/deepspeed-checkpoints", "tests/fuzz/seeds/torch"}},
      {"idx", idx, {"tests/fuzz/seeds/idx"}},
      {"config", config, {"configs", "tests/fuzz/seeds/config"}},
      {"mended", mended, {"tests/fuzz/seeds/mended"}},
      {"tokenizer", tokenizer, {"tests/fuzz/seeds/tokenizer"}},
      {"vocabularies", vocabularies, {"tests/fuzz/seeds/vocabularies"}},
      {"chat_template", chat_template, {"tests/fuzz/seeds/chat_template"}},
      {"chat_line", chat_line, {"tests/fuzz/seeds/chat_line"}},
      {"hostfile", hostfile, {"hostfiles"}},
      {"ssh_config", ssh_config, {"tests/fuzz/seeds/ssh_config"}},
      {"known_hosts", known_hosts, {"tests/fuzz/seeds/known_hosts"}},
      {"agent", agent, {"tests/fuzz/seeds/agent"}},
      {"handshake", handshake, {"tests/fuzz/seeds/handshake"}},
      {"frames", frames, {"tests/fuzz/seeds/frames"}},
      {"store", store, {"tests/fuzz/seeds/store"}}};
  return targets;
}

const FuzzTarget& target_named(const std::string& name) {
  std::string names;
  for (const FuzzTarget& target : all_targets()) {
    if (name == target.name) return target;
    names += std::string(names.empty() ? "" : ", ") + target.name;
  }
  throw std::runtime_error("there is no fuzz target \"" + name + "\"; there are " + names);
}

}  // namespace dstrain::fuzz
