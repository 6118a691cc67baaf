sparsed_attack(tenants DEPS sparsed_client fmt::fmt)
sparsed_attack(many_tenants DEPS sparsed_client fmt::fmt OpenSSL::Crypto)
