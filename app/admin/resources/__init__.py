"""The endpoints of the REST API, a module for each kind of object. Put together in `app.admin.router`."""
