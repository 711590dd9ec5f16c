#include "outer-optimizer/store/checkpoint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fcntl.h>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/base/files.h"
#include "outer-optimizer/store/little_endian.h"

namespace archipelago::outer {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kHeader = "archipelago-checkpoint 1";
constexpr std::string_view kManifest = "manifest.txt";
constexpr std::uint64_t kFragmentMagic = 0x3147524648435241ULL;  // "ARCHFRG1"
constexpr std::size_t kFragmentHeader = 64;
constexpr std::size_t kPiece = 8U << 20;
constexpr std::uint64_t kSyncEvery = 64ULL
                                     << 20;  // bounds what a crash or the final fsync has to write
constexpr std::size_t kMaxAssets = 64;
constexpr std::size_t kMaxAssetBytes = 16U << 20;
constexpr std::uint64_t kMaxSmallFile = 64ULL << 20;

std::string fragment_name(std::int64_t p) { return "fragment-" + std::to_string(p) + ".bin"; }

std::string hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16);
  std::string text(digits.data(), end);
  return std::string(16 - text.size(), '0') + text;
}

template <class T>
bool parse_number(std::string_view text, T* out, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

bool plain_name(std::string_view name) {
  if (name.empty() || name.size() > 64 || name.front() == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

struct ManifestFile {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};
struct Manifest {
  CheckpointInfo info;
  std::string layout_digest;
  std::map<std::string, ManifestFile> files;
};

// "key value..." of one line into the manifest; false: malformed.
bool parse_manifest_line(std::string_view line, Manifest* out) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return false;
  const std::string_view key = line.substr(0, space);
  const std::string_view value = line.substr(space + 1);
  CheckpointInfo& info = out->info;
  if (key == "run") return info.run_id = value, true;
  if (key == "layout") return out->layout_digest = value, true;
  if (key == "step") return parse_number(value, &info.step.value);
  if (key == "epoch") return parse_number(value, &info.epoch);
  if (key == "fragments") return parse_number(value, &info.fragments);
  if (key == "fragmentation") {
    const auto scheme = diloco::parse_scheme(value);
    if (scheme) info.scheme = *scheme;
    return scheme.has_value();
  }
  if (key == "published") {
    info.published_bf16 = value == "bf16";
    return value == "bf16" || value == "fp32";
  }
  if (key == "journal-generation") return parse_number(value, &info.journal_generation);
  if (key == "journal-sequence") return parse_number(value, &info.journal_sequence);
  if (key != "file") return false;
  const std::size_t first = value.find(' ');
  const std::size_t second = value.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  ManifestFile file;
  if (!parse_number(value.substr(first + 1, second - first - 1), &file.bytes)) return false;
  if (!parse_number(value.substr(second + 1), &file.checksum, 16)) return false;
  return out->files.emplace(value.substr(0, first), file).second;
}

Result<Manifest> read_manifest(const fs::path& path) {
  ARCH_TRY(const std::string text, read_file(path, kMaxSmallFile));
  auto corrupt = [&](const std::string& what) {
    return fail(ErrorKind::kCorrupt, path.string() + ": " + what);
  };
  const std::size_t last = text.rfind("end ");
  std::uint64_t checksum = 0;
  if (last == std::string::npos || text.size() != last + 4 + 16 + 1 || text.back() != '\n' ||
      !parse_number(std::string_view(text).substr(last + 4, 16), &checksum, 16))
    return corrupt("not complete");
  if (checksum_of(text_bytes(std::string_view(text).substr(0, last))) != checksum)
    return corrupt("checksum differs");
  std::string_view rest = std::string_view(text).substr(0, last);
  Manifest manifest;
  for (bool first = true; !rest.empty(); first = false) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) return corrupt("malformed");
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (first && line != kHeader)
      return fail(ErrorKind::kUnsupported,
                  path.string() + ": does not start with '" + std::string(kHeader) + "'");
    if (!first && !parse_manifest_line(line, &manifest))
      return corrupt("malformed line '" + std::string(line) + "'");
  }
  return manifest;
}

Result<std::string> read_listed(const fs::path& folder, const Manifest& manifest,
                                const std::string& name) {
  const auto listed = manifest.files.find(name);
  const std::string path = (folder / name).string();
  if (listed == manifest.files.end())
    return fail(ErrorKind::kCorrupt, path + ": not in the manifest");
  auto content = read_file(folder / name, kMaxSmallFile);
  if (!content) return fail(ErrorKind::kCorrupt, content.error().message);
  if (content->size() != listed->second.bytes ||
      checksum_of(text_bytes(*content)) != listed->second.checksum)
    return fail(ErrorKind::kCorrupt, path + ": size or checksum differs from the manifest's");
  return content;
}

std::array<std::byte, kFragmentHeader> fragment_header(FragmentId p, GlobalStep version,
                                                       std::uint64_t elements) {
  std::array<std::byte, kFragmentHeader> bytes{};
  put(bytes, 0, kFragmentMagic);
  put(bytes, 8, static_cast<std::int64_t>(p.value));
  put(bytes, 16, version.value);
  put(bytes, 24, elements);
  put(bytes, 56, checksum_of(std::span(bytes).first(56)));
  return bytes;
}

// Reads one fragment file into the store's arrays; returns its version.
Result<GlobalStep> read_fragment(const fs::path& path, const ManifestFile& listed, FragmentId p,
                                 const FragmentStore::Arrays& arrays) {
  auto corrupt = [&](const std::string& what) {
    return fail(ErrorKind::kCorrupt, path.string() + ": " + what);
  };
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return corrupt("cannot be opened");
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  const std::uint64_t expected = kFragmentHeader + 3 * arrays.master.size_bytes();
  if (error || size != expected || size != listed.bytes)
    return corrupt(std::to_string(size) + " bytes, expected " + std::to_string(expected));
  std::array<std::byte, kFragmentHeader> header{};
  ARCH_TRY_VOID(read_at(fd.get(), header, 0));
  Checksum checksum;
  checksum.add(header);
  const std::span<const std::byte> view(header);
  const GlobalStep version(get<std::int64_t>(view, 16));
  if (header != fragment_header(p, version, arrays.master.size()))
    return corrupt("header is damaged or of another fragment");
  std::uint64_t at = kFragmentHeader;
  for (const std::span<float> array : {arrays.master, arrays.momentum, arrays.published}) {
    for (std::span<std::byte> rest = std::as_writable_bytes(array); !rest.empty();) {
      const auto part = rest.first(std::min(kPiece, rest.size()));
      if (!read_at(fd.get(), part, at))
        return corrupt("cannot be read at byte " + std::to_string(at));
      checksum.add(part);
      at += part.size();
      rest = rest.subspan(part.size());
    }
  }
  if (checksum.value() != listed.checksum) return corrupt("checksum differs from the manifest's");
  return version;
}

}  // namespace

Status check_assets(const Assets& assets) {
  if (assets.size() > kMaxAssets)
    return fail(ErrorKind::kTooLarge,
                std::to_string(assets.size()) + " assets; allowed: " + std::to_string(kMaxAssets));
  std::size_t total = 0;
  for (const auto& [name, content] : assets) {
    if (!plain_name(name))
      return fail(
          ErrorKind::kInvalid,
          "asset name of " + std::to_string(name.size()) +
              " bytes; allowed: letters, digits, '.', '_', '-', at most 64, no leading dot");
    total += content.size();
  }
  if (total > kMaxAssetBytes)
    return fail(ErrorKind::kTooLarge, "assets of " + std::to_string(total) +
                                          " bytes; allowed: " + std::to_string(kMaxAssetBytes));
  return {};
}

std::uint64_t checkpoint_bytes(const diloco::Fragmentation& fragmentation) {
  std::uint64_t bytes = 0;
  for (const auto& fragment : fragmentation.fragments())
    bytes += kFragmentHeader + 12 * static_cast<std::uint64_t>(fragment.elements);
  return bytes;
}

std::uint64_t journal_bytes(const diloco::Fragmentation& fragmentation, std::int64_t every) {
  std::uint64_t elements = 0;
  for (const auto& fragment : fragmentation.fragments())
    elements += static_cast<std::uint64_t>(fragment.elements);
  // 1.5 * 4N * every / P, in an order that neither overflows (N <= 2^48, every bounded) nor rounds
  // to nothing.
  const auto p = static_cast<std::uint64_t>(std::max(1, fragmentation.count()));
  const std::uint64_t steps = static_cast<std::uint64_t>(std::clamp<std::int64_t>(every, 1, 4096));
  return std::max<std::uint64_t>(kMinJournalBytes, 6 * elements / p * steps);
}

std::uint64_t storage_needed(const diloco::Fragmentation& fragmentation, std::int64_t keep,
                             std::int64_t every) {
  const auto copies = static_cast<std::uint64_t>(std::clamp<std::int64_t>(keep, 1, 1000)) + 1;
  const std::uint64_t checkpoint = checkpoint_bytes(fragmentation);
  return checkpoint * copies + journal_bytes(fragmentation, every) + checkpoint / 3;
}

std::vector<GlobalStep> list_checkpoints(const fs::path& folder) {
  std::vector<GlobalStep> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    GlobalStep step;
    const std::string name = entry.path().filename().string();
    if (!parse_number(name, &step.value) || name != std::to_string(step.value)) continue;
    std::error_code ignored;
    if (fs::exists(entry.path() / kManifest, ignored)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

CheckpointWriter::CheckpointWriter(FileOps& ops, fs::path folder, CheckpointInfo info)
    : ops_(ops),
      folder_(std::move(folder)),
      temporary_(folder_ / (".tmp-" + std::to_string(info.step.value))),
      info_(std::move(info)) {}

CheckpointWriter::~CheckpointWriter() {
  if (!finished_) static_cast<void>(ops_.remove_all(temporary_));
}

Status CheckpointWriter::write_small(const std::string& name, std::string_view content) {
  ARCH_TRY(UniqueFd fd, ops_.open(temporary_ / name));
  ARCH_TRY_VOID(ops_.write_at(fd.get(), text_bytes(content), 0));
  ARCH_TRY_VOID(ops_.sync(fd.get()));
  files_.push_back({name, content.size(), checksum_of(text_bytes(content))});
  return {};
}

Status CheckpointWriter::begin() {
  ARCH_TRY_VOID(ops_.remove_all(temporary_));
  ARCH_TRY_VOID(ops_.make_folder(temporary_ / "assets"));
  ARCH_TRY_VOID(write_small("layout.txt", info_.layout.to_text()));
  ARCH_TRY_VOID(write_small("state.json", info_.core_state));
  for (const auto& [name, content] : info_.assets)
    ARCH_TRY_VOID(write_small("assets/" + name, content));
  return {};
}

Status CheckpointWriter::write_fragment(FragmentId p, GlobalStep version,
                                        std::span<const float> master,
                                        std::span<const float> momentum,
                                        std::span<const float> published) {
  const std::string name = fragment_name(p.value);
  ARCH_TRY(UniqueFd fd, ops_.open(temporary_ / name));
  const std::uint64_t size = kFragmentHeader + 3 * master.size_bytes();
  ARCH_TRY_VOID(ops_.preallocate(fd.get(), size));
  Checksum checksum;
  std::uint64_t at = 0;
  std::uint64_t unsynced = 0;
  auto write = [&](std::span<const std::byte> bytes) -> Status {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(kPiece, bytes.size()));
      checksum.add(part);
      ARCH_TRY_VOID(ops_.write_at(fd.get(), part, at));
      at += part.size();
      unsynced += part.size();
      bytes = bytes.subspan(part.size());
      if (unsynced < kSyncEvery) continue;
      ARCH_TRY_VOID(ops_.sync(fd.get()));
      unsynced = 0;
    }
    return {};
  };
  ARCH_TRY_VOID(write(fragment_header(p, version, master.size())));
  for (const std::span<const float> array : {master, momentum, published})
    ARCH_TRY_VOID(write(std::as_bytes(array)));
  ARCH_TRY_VOID(ops_.sync(fd.get()));
  files_.push_back({name, size, checksum.value()});
  return {};
}

Status CheckpointWriter::finish() {
  std::ostringstream out;
  out << kHeader << "\nrun " << info_.run_id << "\nstep " << info_.step << "\nepoch " << info_.epoch
      << "\nlayout " << info_.layout.digest().hex() << "\nfragments " << info_.fragments
      << "\nfragmentation " << diloco::to_string(info_.scheme) << "\npublished "
      << (info_.published_bf16 ? "bf16" : "fp32") << "\njournal-generation "
      << info_.journal_generation << "\njournal-sequence " << info_.journal_sequence << '\n';
  for (const File& file : files_)
    out << "file " << file.name << ' ' << file.bytes << ' ' << hex(file.checksum) << '\n';
  const std::string body = out.str();
  // The parts are durable under their names before the manifest can be seen.
  ARCH_TRY_VOID(ops_.sync_folder(temporary_ / "assets"));
  ARCH_TRY_VOID(ops_.sync_folder(temporary_));
  ARCH_TRY_VOID(write_small(std::string(kManifest),
                            body + "end " + hex(checksum_of(text_bytes(body))) + "\n"));
  ARCH_TRY_VOID(ops_.sync_folder(temporary_));
  const fs::path final_path = folder_ / std::to_string(info_.step.value);
  const fs::path replaced = folder_ / (".old-" + std::to_string(info_.step.value));
  std::error_code ignored;
  const bool replaces = fs::exists(final_path, ignored);
  if (replaces) {
    ARCH_TRY_VOID(ops_.remove_all(replaced));
    ARCH_TRY_VOID(ops_.rename(final_path, replaced));
  }
  ARCH_TRY_VOID(ops_.rename(temporary_, final_path));
  finished_ = true;
  ARCH_TRY_VOID(ops_.sync_folder(folder_));
  if (replaces) ARCH_TRY_VOID(ops_.remove_all(replaced));
  return {};
}

Result<CheckpointInfo> read_checkpoint_info(const fs::path& folder, GlobalStep step) {
  const fs::path path = folder / std::to_string(step.value);
  ARCH_TRY(Manifest manifest, read_manifest(path / kManifest));
  if (manifest.info.step != step)
    return fail(ErrorKind::kCorrupt,
                path.string() + ": is of step " + std::to_string(manifest.info.step.value));
  CheckpointInfo& info = manifest.info;
  ARCH_TRY(const std::string layout, read_listed(path, manifest, "layout.txt"));
  ARCH_TRY(info.layout, diloco::Layout::parse_text(layout));
  if (info.layout.digest().hex() != manifest.layout_digest)
    return fail(ErrorKind::kCorrupt,
                path.string() + ": layout.txt is not the layout of the manifest");
  ARCH_TRY(info.core_state, read_listed(path, manifest, "state.json"));
  constexpr std::string_view kAssets = "assets/";
  for (const auto& [name, listed] : manifest.files) {
    if (!name.starts_with(kAssets)) continue;
    const std::string asset = name.substr(kAssets.size());
    if (!plain_name(asset))
      return fail(ErrorKind::kCorrupt, path.string() + ": asset name in the manifest");
    ARCH_TRY(info.assets[asset], read_listed(path, manifest, name));
  }
  return info;
}

Status read_checkpoint_tensors(const fs::path& folder, const CheckpointInfo& info,
                               FragmentStore& store) {
  const fs::path path = folder / std::to_string(info.step.value);
  ARCH_TRY(const Manifest manifest, read_manifest(path / kManifest));
  for (std::int32_t i = 0; i < store.fragmentation().count(); ++i) {
    const FragmentId p(i);
    const auto listed = manifest.files.find(fragment_name(i));
    if (listed == manifest.files.end())
      return fail(ErrorKind::kCorrupt,
                  (path / fragment_name(i)).string() + ": not in the manifest");
    ARCH_TRY(const GlobalStep version,
             read_fragment(path / fragment_name(i), listed->second, p, store.arrays(p)));
    store.adopt(p, version);
  }
  return {};
}

Result<std::vector<MappedFragment>> map_published(const fs::path& folder,
                                                  const CheckpointInfo& info,
                                                  const diloco::Fragmentation& fragmentation,
                                                  bool verify) {
  const fs::path path = folder / std::to_string(info.step.value);
  ARCH_TRY(const Manifest manifest, read_manifest(path / kManifest));
  std::vector<MappedFragment> out;
  for (std::int32_t i = 0; i < fragmentation.count(); ++i) {
    const fs::path name = path / fragment_name(i);
    auto corrupt = [&](const std::string& what) {
      return fail(ErrorKind::kCorrupt, name.string() + ": " + what);
    };
    const auto listed = manifest.files.find(fragment_name(i));
    if (listed == manifest.files.end()) return corrupt("not in the manifest");
    ARCH_TRY(MappedFile mapped, MappedFile::open(name));
    const auto bytes = mapped.bytes();
    const auto elements = static_cast<std::size_t>(fragmentation[FragmentId(i)].elements);
    if (bytes.size() != kFragmentHeader + 12 * elements || bytes.size() != listed->second.bytes)
      return corrupt(std::to_string(bytes.size()) + " bytes are not what the layout has");
    const auto header =
        fragment_header(FragmentId(i), GlobalStep(get<std::int64_t>(bytes, 16)), elements);
    if (!std::equal(header.begin(), header.end(), bytes.begin()))
      return corrupt("header is damaged or of another fragment");
    if (verify && checksum_of(bytes) != listed->second.checksum)
      return corrupt("checksum differs from the manifest's");
    // After the header (64 bytes): master, momentum, published.
    const auto* first = reinterpret_cast<const float*>(bytes.data() + kFragmentHeader);
    const std::span values(first + 2 * elements, elements);
    out.push_back({std::make_shared<const MappedFile>(std::move(mapped)), values});
  }
  return out;
}

Status restore_replaced(FileOps& ops, const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with(".old-")) found.push_back(entry.path());
  for (const fs::path& old : found) {
    const fs::path final_path = folder / old.filename().string().substr(5);
    if (!fs::exists(final_path, error)) ARCH_TRY_VOID(ops.rename(old, final_path));
  }
  return {};
}

Status set_aside(FileOps& ops, const fs::path& folder, GlobalStep step) {
  const fs::path aside = folder / (".corrupt-" + std::to_string(step.value));
  ARCH_TRY_VOID(ops.remove_all(aside));
  return ops.rename(folder / std::to_string(step.value), aside);
}

Status prune_checkpoints(FileOps& ops, const fs::path& folder, std::int64_t keep,
                         std::int64_t keep_every) {
  std::vector<GlobalStep> steps = list_checkpoints(folder);
  const auto kept = static_cast<std::size_t>(std::max<std::int64_t>(1, keep));
  steps.resize(steps.size() > kept ? steps.size() - kept : 0);
  for (const GlobalStep step : steps) {
    if (keep_every > 0 && step.value > 0 && step.value % keep_every == 0) continue;
    const fs::path path = folder / std::to_string(step.value);
    ARCH_TRY_VOID(ops.remove_all(
        path / kManifest));  // first: a half-removed checkpoint must not look complete
    ARCH_TRY_VOID(ops.remove_all(path));
  }
  std::vector<fs::path> leftovers;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    GlobalStep step;
    std::error_code ignored;
    if (name.starts_with(".tmp-") || name.starts_with(".old-") || name.starts_with(".corrupt-") ||
        (parse_number(name, &step.value) && !fs::exists(entry.path() / kManifest, ignored)))
      leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) ARCH_TRY_VOID(ops.remove_all(path));
  return {};
}

}  // namespace archipelago::outer
