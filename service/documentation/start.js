"use strict";

// The address of a validator is null: the default one is on another host.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#documentation",
  deepLinking: true,
  displayOperationId: true,
  validatorUrl: null,
});
