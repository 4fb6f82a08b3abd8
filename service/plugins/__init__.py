"""Extensions of the service that speak protocols of other projects; entry points name them."""
