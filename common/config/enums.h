#pragma once
// The enums of spec.h by the names that the resource uses. Within this room only.
#include <array>

#include "common/config/json_reader.h"
#include "common/config/spec.h"

namespace archipelago::config {

inline constexpr std::array<Named<DataFormat>, 3> kDataFormats{
    {{DataFormat::kText, "text"},
     {DataFormat::kTokensU16, "tokens-u16"},
     {DataFormat::kTokensU32, "tokens-u32"}}};
inline constexpr std::array<Named<Precision>, 2> kPrecisions{
    {{Precision::kFp32, "fp32"}, {Precision::kBf16, "bf16"}}};
inline constexpr std::array<Named<GraceRule>, 3> kGraceRules{
    {{GraceRule::kSteps, "steps"}, {GraceRule::kSlack, "slack"}, {GraceRule::kOff, "off"}}};
inline constexpr std::array<Named<MergeRule>, 2> kMergeRules{
    {{MergeRule::kRda, "rda"}, {MergeRule::kMean, "mean"}}};
inline constexpr std::array<Named<MergeRule>, 2> kEmbeddingMergeRules{
    {{MergeRule::kMean, "mean"}, {MergeRule::kRda, "rda"}}};
inline constexpr std::array<Named<CodecName>, 4> kCodecs{{{CodecName::kFp32, "fp32"},
                                                          {CodecName::kBf16, "bf16"},
                                                          {CodecName::kInt8, "int8"},
                                                          {CodecName::kInt4, "int4"}}};
inline constexpr std::array<Named<AttentionBias>, 3> kAttentionBiases{
    {{AttentionBias::kNone, "none"}, {AttentionBias::kQkv, "qkv"}, {AttentionBias::kAll, "all"}}};
inline constexpr std::array<Named<RopeScaling>, 3> kRopeScalings{
    {{RopeScaling::kNone, "none"},
     {RopeScaling::kLinear, "linear"},
     {RopeScaling::kLlama3, "llama3"}}};
inline constexpr std::array<Named<LrSchedule>, 2> kSchedules{
    {{LrSchedule::kCosine, "cosine"}, {LrSchedule::kConstant, "constant"}}};
inline constexpr std::array<Named<RetainPolicy>, 2> kRetainPolicies{
    {{RetainPolicy::kRetain, "Retain"}, {RetainPolicy::kDelete, "Delete"}}};

// Fields with one value today; the others are known and refused.
using Word = std::string_view;
inline constexpr std::array<Named<Word>, 2> kOptimizers{{{"adamw", "adamw"}, {"muon", "muon"}}};
inline constexpr std::array<Named<Word>, 2> kTokenizers{
    {{"bytes", "bytes"}, {"sentencepiece", "sentencepiece", false}}};
inline constexpr std::array<Named<Word>, 4> kFragmentations{
    {{"balanced", "balanced"}, {"layer", "layer"}, {"tensor", "tensor"}, {"split", "split"}}};
inline constexpr std::array<Named<Word>, 2> kShards{
    {{"single", "single"}, {"perDatacenter", "perDatacenter", false}}};
inline constexpr std::array<Named<Word>, 3> kTls{
    {{"off", "off"}, {"auto", "auto", false}, {"secret", "secret", false}}};
inline constexpr std::array<Named<Word>, 3> kServiceTypes{
    {{"ClusterIP", "ClusterIP"},
     {"NodePort", "NodePort", false},
     {"LoadBalancer", "LoadBalancer", false}}};
inline constexpr std::array<Named<Word>, 3> kPullPolicies{
    {{"IfNotPresent", "IfNotPresent"}, {"Always", "Always"}, {"Never", "Never"}}};
inline constexpr std::array<Named<bool>, 2> kJournals{{{true, "fp32"}, {false, "off"}}};

}  // namespace archipelago::config
