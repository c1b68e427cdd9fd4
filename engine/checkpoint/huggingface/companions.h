// Companions: the small files that belong to weights: config.json and the tokenizer's. They travel
// with a conversion, from wherever they are to be found.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace dstrain {

class Companions {
 public:
  void add(const std::string& name, std::string content) { files_[name] = std::move(content); }
  /// A file that is not to be copied as it is; none if there is none.
  std::optional<std::string> take(const std::string& name);
  /// By name.
  [[nodiscard]] const std::map<std::string, std::string>& files() const { return files_; }

 private:
  std::map<std::string, std::string> files_;
};

/// Those in a folder.
Companions companions_of_folder(const std::filesystem::path& folder);

/// Of weights at `source`, whose run had this config (JSON text): those beside the weights, or else
/// of the folder that the run started from; or else the tokenizer that made its training data.
Companions find_companions(const std::filesystem::path& source, const std::string& run_config);

}  // namespace dstrain
