// The examples in client/examples, each against a computation that knows nothing of sparse
// products.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "client/examples/breadth_first.h"
#include "client/examples/galerkin.h"
#include "client/examples/markov_clustering.h"
#include "client/examples/triangles.h"
#include "tests/unit/client/client_testing.h"

namespace sparsed::test {
namespace {

using examples::BreadthFirstLevels;
using examples::CountTriangles;
using examples::GalerkinProduct;
using examples::MarkovClusters;
using examples::MarkovOptions;
using examples::MarkovStep;

/// For each row, its columns and values.
using Rows = std::vector<std::map<int32_t, float>>;

CsrMatrix ToCsr(const Rows& rows, int64_t cols) {
  CsrMatrix matrix;
  matrix.rows = static_cast<int64_t>(rows.size());
  matrix.cols = cols;
  matrix.row_offsets = {0};
  std::vector<float> values;
  for (const auto& row : rows) {
    for (const auto& [column, value] : row) {
      matrix.column_indices.push_back(column);
      values.push_back(value);
    }
    matrix.row_offsets.push_back(matrix.nnz());
  }
  matrix.values = values;
  return matrix;
}

/// Each ordered pair of vertices is an edge with this chance.
Rows RandomEdges(int32_t vertices, double chance, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution edge(chance);
  Rows rows(vertices);
  for (int32_t u = 0; u < vertices; ++u) {
    for (int32_t v = 0; v < vertices; ++v) {
      if (u != v && edge(random)) rows[u][v] = static_cast<float>(random() % 9) - 4;
    }
  }
  return rows;
}

Rows Lower(const Rows& rows) {
  Rows lower(rows.size());
  for (size_t u = 0; u < rows.size(); ++u) {
    for (const auto& [v, value] : rows[u]) {
      if (v < static_cast<int32_t>(u)) lower[u][v] = value;
    }
  }
  return lower;
}

TEST(Examples, TrianglesAreThoseThatLoopsFind) {
  ServerProcess server;
  const auto client = Connect(server);
  const auto expect = [&](const Rows& lower, int64_t triangles) {
    const auto n = static_cast<int64_t>(lower.size());
    const auto graph = client.Upload("graph", ToCsr(lower, n).View(), {.replace = true});
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto counted = CountTriangles(*graph);
    ASSERT_TRUE(counted.ok()) << counted.status();
    EXPECT_EQ(*counted, triangles);
  };
  for (unsigned seed = 1; seed < 4; ++seed) {
    const Rows lower = Lower(RandomEdges(90 + static_cast<int32_t>(seed), 0.04 * seed, seed));
    int64_t triangles = 0;
    for (size_t u = 0; u < lower.size(); ++u) {
      for (size_t v = 0; v < u; ++v) {
        for (size_t w = 0; w < v; ++w) {
          triangles += lower[u].contains(v) && lower[u].contains(w) && lower[v].contains(w);
        }
      }
    }
    expect(lower, triangles);
  }
  expect(Lower(RandomEdges(40, 1, 5)), 40 * 39 * 38 / 6);
  expect(Rows(7), 0);
  Rows bipartite(60);
  for (int32_t u = 30; u < 60; ++u) {
    for (int32_t v = 0; v < 30; ++v) bipartite[u][v] = 1;
  }
  expect(bipartite, 0);
}

std::vector<int32_t> LevelsByQueue(const Rows& edges, int32_t source) {
  std::vector<int32_t> levels(edges.size(), -1);
  std::deque<int32_t> queue = {source};
  levels[source] = 0;
  while (!queue.empty()) {
    const int32_t u = queue.front();
    queue.pop_front();
    for (const auto& [v, value] : edges[u]) {
      if (levels[v] >= 0) continue;
      levels[v] = levels[u] + 1;
      queue.push_back(v);
    }
  }
  return levels;
}

TEST(Examples, BreadthFirstLevelsAreThoseOfAQueue) {
  ServerProcess server;
  const auto client = Connect(server);
  Rows path(50);
  for (int32_t v = 0; v + 1 < 50; ++v) path[v][v + 1] = 0;  // values don't matter, zeros too
  for (const Rows& edges : {RandomEdges(200, 0.01, 6), RandomEdges(150, 0.03, 7), path, Rows(5)}) {
    const auto n = static_cast<int64_t>(edges.size());
    const auto graph = client.Upload("graph", ToCsr(edges, n).View(), {.replace = true});
    ASSERT_TRUE(graph.ok()) << graph.status();
    std::vector<int32_t> sources = {0, 3, 3, static_cast<int32_t>(n) - 1};
    for (int32_t v = 0; v < n; v += 7) sources.push_back(v);
    const auto levels = BreadthFirstLevels(client, *graph, sources, "frontier");
    ASSERT_TRUE(levels.ok()) << levels.status();
    for (size_t i = 0; i < sources.size(); ++i) {
      const std::vector<int32_t> expected = LevelsByQueue(edges, sources[i]);
      for (int64_t v = 0; v < n; ++v) {
        ASSERT_EQ((*levels)[v * sources.size() + i], expected[v]) << v << " from " << sources[i];
      }
    }
    EXPECT_EQ(client.MatrixNamed("frontier").Info().status().code(), absl::StatusCode::kNotFound);
    const std::vector<int32_t> outside = {static_cast<int32_t>(n)};
    EXPECT_EQ(BreadthFirstLevels(client, *graph, outside, "frontier").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

/// A grid of up to three dimensions.
struct Grid {
  std::vector<int32_t> sizes;

  int32_t points() const {
    return std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>());
  }
  std::vector<int32_t> Place(int32_t point) const {
    std::vector<int32_t> place;
    for (const int32_t size : sizes) {
      place.push_back(point % size);
      point /= size;
    }
    return place;
  }
  int32_t Point(const std::vector<int32_t>& place) const {
    int32_t point = 0;
    for (size_t d = sizes.size(); d-- > 0;) point = point * sizes[d] + place[d];
    return point;
  }
  /// The grid of half as many points in each direction, rounded up.
  Grid Coarse() const {
    Grid coarse = *this;
    for (int32_t& size : coarse.sizes) size = (size + 1) / 2;
    return coarse;
  }
  /// The point of the coarse grid that stands for a point.
  int32_t CoarsePoint(int32_t point) const {
    std::vector<int32_t> place = Place(point);
    for (int32_t& x : place) x /= 2;
    return Coarse().Point(place);
  }
};

/// Neighbours one step away, along the axes alone or across corners too, get -1; the point itself
/// what makes the sum of a row inside 0.
Rows Stencil(const Grid& grid, bool corners) {
  Rows rows(grid.points());
  for (int32_t p = 0; p < grid.points(); ++p) {
    const std::vector<int32_t> from = grid.Place(p);
    for (int32_t q = 0; q < grid.points(); ++q) {
      const std::vector<int32_t> to = grid.Place(q);
      int32_t steps = 0, farthest = 0;
      for (size_t d = 0; d < to.size(); ++d) {
        steps += std::abs(to[d] - from[d]);
        farthest = std::max(farthest, std::abs(to[d] - from[d]));
      }
      if (steps == 1 || (corners && farthest == 1)) rows[p][q] = -1;
    }
    const auto dimensions = static_cast<double>(grid.sizes.size());
    rows[p][p] = static_cast<float>(corners ? std::pow(3, dimensions) - 1 : 2 * dimensions);
  }
  return rows;
}

/// The sums of A's entries between any two aggregates: no product of matrices in sight.
TEST(Examples, GalerkinProductsAreSumsOverAggregates) {
  ServerProcess server;
  const auto client = Connect(server);
  struct Case {
    Grid grid;
    bool corners;
  };
  for (const auto& [grid, corners] :
       {Case{{{17, 12}}, false}, Case{{{11, 9}}, true}, Case{{{6, 5, 7}}, false}}) {
    const Rows a = Stencil(grid, corners);
    const int32_t coarse_points = grid.Coarse().points();
    Rows p(grid.points()), expected(coarse_points);
    for (int32_t u = 0; u < grid.points(); ++u) {
      p[u][grid.CoarsePoint(u)] = 1;
      for (const auto& [v, value] : a[u]) {
        expected[grid.CoarsePoint(u)][grid.CoarsePoint(v)] += value;
      }
    }
    const auto fine = client.Upload("a", ToCsr(a, grid.points()).View(), {.replace = true});
    ASSERT_TRUE(fine.ok()) << fine.status();
    const auto interpolation =
        client.Upload("p", ToCsr(p, coarse_points).View(), {.replace = true});
    ASSERT_TRUE(interpolation.ok()) << interpolation.status();
    const auto coarse = GalerkinProduct(client, *fine, *interpolation, "ap");
    ASSERT_TRUE(coarse.ok()) << coarse.status();
    const CsrMatrix wanted = ToCsr(expected, coarse_points);
    EXPECT_EQ(coarse->row_offsets, wanted.row_offsets);
    EXPECT_EQ(coarse->column_indices, wanted.column_indices);
    EXPECT_EQ(F32(*coarse), F32(wanted));
    EXPECT_EQ(client.MatrixNamed("ap").Info().status().code(), absl::StatusCode::kNotFound);
  }
}

/// One step of a clustering, dense and in float64.
std::vector<std::vector<double>> DenseStep(const std::vector<std::vector<double>>& m,
                                           double inflation) {
  const size_t n = m.size();
  std::vector<std::vector<double>> next(n, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < n; ++k) next[i][j] += m[i][k] * m[k][j];
      next[i][j] = std::pow(next[i][j], inflation);
      sum += next[i][j];
    }
    for (double& chance : next[i]) chance /= sum;
  }
  return next;
}

TEST(Examples, MarkovStepsAreThoseOfDenseMatrices) {
  ServerProcess server;
  const auto client = Connect(server);
  constexpr int32_t kVertices = 40;
  std::vector<std::vector<double>> dense(kVertices, std::vector<double>(kVertices));
  Rows rows = RandomEdges(kVertices, 0.1, 8);
  for (int32_t u = 0; u < kVertices; ++u) {
    rows[u][u] = 1;
    for (auto& [v, chance] : rows[u]) {
      chance = 1 / static_cast<float>(rows[u].size());
      dense[u][v] = chance;
    }
  }
  CsrMatrix chances = ToCsr(rows, kVertices);
  const MarkovOptions options = {.inflation = 1.7, .least = 0};
  for (int step = 0; step < 3; ++step) {
    auto next = MarkovStep(client, chances, options, "m");
    ASSERT_TRUE(next.ok()) << next.status();
    chances = *std::move(next);
    dense = DenseStep(dense, options.inflation);
    std::vector<std::vector<double>> got(kVertices, std::vector<double>(kVertices));
    for (int32_t u = 0; u < kVertices; ++u) {
      for (int64_t p = chances.row_offsets[u]; p < chances.row_offsets[u + 1]; ++p) {
        got[u][chances.column_indices[p]] = F32(chances)[p];
      }
      for (int32_t v = 0; v < kVertices; ++v) ASSERT_NEAR(got[u][v], dense[u][v], 1e-5);
    }
  }
}

TEST(Examples, MarkovClustersAreThoseThatWerePlanted) {
  ServerProcess server;
  const auto client = Connect(server);
  // Cliques of 5 to 9 vertices; one edge from each to the next.
  std::vector<int32_t> clique_of;
  for (int32_t clique = 0; clique < 5; ++clique) {
    clique_of.insert(clique_of.end(), static_cast<size_t>(5 + clique), clique);
  }
  const auto n = static_cast<int32_t>(clique_of.size());
  Rows rows(n);
  for (int32_t u = 0; u < n; ++u) {
    for (int32_t v = 0; v < n; ++v) {
      if (clique_of[u] == clique_of[v]) rows[u][v] = 1;
    }
    if (u + 1 < n && clique_of[u] != clique_of[u + 1]) rows[u][u + 1] = rows[u + 1][u] = 1;
  }
  const auto clusters = MarkovClusters(client, ToCsr(rows, n), {}, "scratch");
  ASSERT_TRUE(clusters.ok()) << clusters.status();
  std::map<int32_t, std::set<int32_t>> cliques;  // of each cluster
  for (int32_t u = 0; u < n; ++u) cliques[(*clusters)[u]].insert(clique_of[u]);
  EXPECT_EQ(cliques.size(), 5u);
  for (const auto& [cluster, of] : cliques) {
    EXPECT_THAT(of, testing::ElementsAre(clique_of[cluster]));
  }
  EXPECT_EQ(client.MatrixNamed("scratch").Info().status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sparsed::test
