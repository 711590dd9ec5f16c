// `archipelago replay`: the program that trains, beside this one.
#include <cerrno>
#include <cstring>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/spec_file.h"

namespace archipelago::cli {

int replay_command(const std::vector<std::string>& arguments) {
  const std::filesystem::path program = own_folder() / "archipelago-replay";
  std::vector<std::string> words{program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  return complain("start " + program.string() + ": " + std::strerror(errno), kExitFailed);
}

}  // namespace archipelago::cli
