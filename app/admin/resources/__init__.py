"""The endpoints of the REST API, one module for each kind of object; `app.admin.router` includes them."""
