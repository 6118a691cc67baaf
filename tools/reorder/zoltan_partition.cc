#include "tools/reorder/zoltan_partition.h"

#include <fmt/format.h>
#include <mpi.h>
#include <zoltan.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

namespace sparsed::tools {
namespace {

const ProductHypergraph& GraphOf(void* data) {
  return *static_cast<const ProductHypergraph*>(data);
}

int CountVertices(void* data, int* error) {
  *error = ZOLTAN_OK;
  return static_cast<int>(GraphOf(data).products.size());
}

void ListVertices(void* data, int /*gid_entries*/, int /*lid_entries*/, ZOLTAN_ID_PTR global,
                  ZOLTAN_ID_PTR /*local*/, int /*weights*/, float* /*weight*/, int* error) {
  const size_t vertices = GraphOf(data).products.size();
  for (size_t v = 0; v < vertices; ++v) global[v] = static_cast<ZOLTAN_ID_TYPE>(v);
  *error = ZOLTAN_OK;
}

void SizeOfPins(void* data, int* lists, int* pins, int* format, int* error) {
  *lists = static_cast<int>(GraphOf(data).products.size());
  *pins = 3 * *lists;
  *format = ZOLTAN_COMPRESSED_VERTEX;
  *error = ZOLTAN_OK;
}

void ListPins(void* data, int /*gid_entries*/, int lists, int /*pins*/, int /*format*/,
              ZOLTAN_ID_PTR vertices, int* begins, ZOLTAN_ID_PTR nets, int* error) {
  const ProductHypergraph& graph = GraphOf(data);
  for (int v = 0; v < lists; ++v) {
    vertices[v] = static_cast<ZOLTAN_ID_TYPE>(v);
    begins[v] = 3 * v;
    for (const int64_t net : graph.products[v].nets) *nets++ = static_cast<ZOLTAN_ID_TYPE>(net);
  }
  *error = ZOLTAN_OK;
}

struct DestroyZoltan {
  void operator()(Zoltan_Struct* zoltan) const { Zoltan_Destroy(&zoltan); }
};

/// The lists that a partitioning returns; freed together.
struct Lists {
  ZOLTAN_ID_PTR import_global = nullptr, import_local = nullptr, global = nullptr, local = nullptr;
  int *import_processes = nullptr, *import_parts = nullptr, *processes = nullptr, *parts = nullptr;
  int imports = 0, vertices = 0;

  Lists() = default;
  Lists(const Lists&) = delete;
  Lists& operator=(const Lists&) = delete;
  ~Lists() {
    Zoltan_LB_Free_Part(&import_global, &import_local, &import_processes, &import_parts);
    Zoltan_LB_Free_Part(&global, &local, &processes, &parts);
  }
};

}  // namespace

Zoltan::Zoltan() {
  MPI_Init(nullptr, nullptr);
  float version = 0;
  Zoltan_Initialize(0, nullptr, &version);
}

Zoltan::~Zoltan() { MPI_Finalize(); }

absl::StatusOr<std::vector<int32_t>> ZoltanPartition(const ProductHypergraph& graph, int parts) {
  constexpr auto kMostIds = static_cast<int64_t>(std::numeric_limits<ZOLTAN_ID_TYPE>::max());
  constexpr size_t kMostVertices = std::numeric_limits<int>::max() / 3;
  if (graph.nets() >= kMostIds || graph.products.size() > kMostVertices) {
    return absl::InvalidArgumentError(
        fmt::format("Zoltan takes {} products and {} nonzeros at most, not {} and {}",
                    kMostVertices, kMostIds, graph.products.size(), graph.nets()));
  }
  const std::unique_ptr<Zoltan_Struct, DestroyZoltan> zoltan(Zoltan_Create(MPI_COMM_SELF));
  const std::string part_count = std::to_string(parts);
  for (const auto& [name, value] : {std::pair{"DEBUG_LEVEL", "0"},
                                    {"LB_METHOD", "HYPERGRAPH"},
                                    {"HYPERGRAPH_PACKAGE", "PHG"},
                                    {"LB_APPROACH", "PARTITION"},
                                    {"NUM_GID_ENTRIES", "1"},
                                    {"NUM_LID_ENTRIES", "0"},
                                    {"RETURN_LISTS", "PARTS"},
                                    {"IMBALANCE_TOL", "1.1"},
                                    {"SEED", "1"},
                                    {"NUM_GLOBAL_PARTS", part_count.c_str()}}) {
    Zoltan_Set_Param(zoltan.get(), name, value);
  }
  void* data = const_cast<ProductHypergraph*>(&graph);
  Zoltan_Set_Num_Obj_Fn(zoltan.get(), CountVertices, data);
  Zoltan_Set_Obj_List_Fn(zoltan.get(), ListVertices, data);
  Zoltan_Set_HG_Size_CS_Fn(zoltan.get(), SizeOfPins, data);
  Zoltan_Set_HG_CS_Fn(zoltan.get(), ListPins, data);

  Lists lists;
  int changes = 0, gid_entries = 0, lid_entries = 0;
  const int code = Zoltan_LB_Partition(
      zoltan.get(), &changes, &gid_entries, &lid_entries, &lists.imports, &lists.import_global,
      &lists.import_local, &lists.import_processes, &lists.import_parts, &lists.vertices,
      &lists.global, &lists.local, &lists.processes, &lists.parts);
  if (code != ZOLTAN_OK && code != ZOLTAN_WARN) {
    return absl::InternalError(fmt::format("Zoltan's partitioner failed with code {}", code));
  }
  std::vector<int32_t> part_of(graph.products.size(), 0);
  for (int i = 0; i < lists.vertices; ++i) part_of[lists.global[i]] = lists.parts[i];
  return part_of;
}

}  // namespace sparsed::tools
