// What the handles of the C interface are, apart from those that one file knows alone.
#pragma once

#include <memory>

#include "client/c/local.h"
#include "sparsed/c.h"
#include "sparsed/client.h"
#include "sparsed/types.h"

struct sparsed_client {
  std::shared_ptr<sparsed::c::LocalClient> local;

  const sparsed::Client& client() const { return local->client(); }
};

struct sparsed_matrix {
  std::shared_ptr<sparsed::c::LocalMatrix> local;

  const sparsed::Client& client() const { return local->client()->client(); }
  const sparsed::Matrix& matrix() const { return local->matrix(); }
};

struct sparsed_csr {
  sparsed::CsrMatrix matrix;
};
