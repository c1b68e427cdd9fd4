// Companions: the small files that belong to weights: config.json and the tokenizer's. They travel
// with a run's checkpoints and with a conversion, from wherever they are found.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/dataset_description.h"
#include "engine/config/tokenizer_identity.h"

namespace dstrain {

class Companions {
 public:
  void add(const std::string& name, std::string content) { files_[name] = std::move(content); }
  /// Takes out a file that is not to be copied as it is; nothing if there is none.
  std::optional<std::string> take(const std::string& name);
  void remove_tokenizer();
  /// By name.
  [[nodiscard]] const std::map<std::string, std::string>& files() const { return files_; }
  /// The tokenizers that the files are of: tokenizer.model, tokenizer.json.
  [[nodiscard]] std::vector<TokenizerIdentity> tokenizers() const;

 private:
  std::map<std::string, std::string> files_;
};

/// The companions in a folder.
Companions companions_of_folder(const std::filesystem::path& folder);

/// The companions of a run: those of the first of these folders of weights that has any, but with
/// the tokenizer that made the run's data in place of any other, where it is known.
Companions companions_of_run(const std::vector<std::filesystem::path>& weights,
                             const std::optional<DatasetDescription>& data);

/// The companions of weights at `source`, whose run had this config (JSON text): those beside the
/// weights, or else those of the folder that the run started from, and the tokenizer that made its
/// training data.
Companions find_companions(const std::filesystem::path& source, const std::string& run_config);

}  // namespace dstrain
